//! Ids of sites that outlive a report: the same call path of the same build has the same one in every process, on every
//! machine. So a metric can name a site whose call path stands in the report of a window.

use drainprof_process::{Frame, Module};

use crate::model::{allocator::Allocator, site::Site};

/// Gives ids to the sites whose frames are known.
pub(super) fn add(allocators: &mut [Allocator], modules: &[Module]) {
    for site in allocators.iter_mut().flat_map(|allocator| allocator.sites.iter_mut().flatten()) {
        site.id = id(site, modules);
    }
}

/// Of the place of opening and of all frames, the file and the offset in it. `None` where one of them is not known:
/// two sites could then have the same id, or one of them another the next time.
fn id(site: &Site, modules: &[Module]) -> Option<String> {
    if site.frames.is_empty() {
        return None;
    }
    let mut hash = Hash::new();
    if site.opened_at.place.is_some() {
        hash.frame(&site.opened_at.frame, modules)?;
    } else {
        hash.word("");
        hash.word("");
    }
    for frame in &site.frames {
        hash.frame(&frame.frame, modules)?;
    }
    Some(format!("{:016x}", hash.0))
}

/// FNV-1a, 64 bits. The standard library's hash may change with its version, and this must not.
struct Hash(u64);

impl Hash {
    const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// With an end of its own, so that two words are not one.
    fn word(&mut self, word: &str) {
        for byte in word.bytes().chain([0]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// A file is known by its build id. By its name where it has none, and where two files have that name: frames do
    /// not say which of them is theirs.
    fn frame(&mut self, frame: &Frame, modules: &[Module]) -> Option<()> {
        let name = frame.module.as_deref()?;
        let mut own = modules.iter().filter(|module| module.name == name);
        let file = match (own.next(), own.next()) {
            (Some(Module { build_id: Some(build_id), .. }), None) => build_id.as_str(),
            _ => name,
        };
        let place = frame.module_offset.as_deref().or(frame.function.as_deref())?;
        self.word(file);
        self.word(place);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpenedAt, SiteFrame};

    fn frame(module: &str, offset: &str) -> Frame {
        Frame {
            module: Some(module.to_owned()),
            module_offset: Some(offset.to_owned()),
            ..Frame::default()
        }
    }

    fn site() -> Site {
        let frames = [("svc", "0x20"), ("libc.so.6", "0x30")];
        let frames = frames.iter().enumerate().map(|(number, (module, offset))| SiteFrame {
            address: Some(format!("{:#x}", 0x7000 + number)),
            frame: frame(module, offset),
        });
        Site {
            opened_at: OpenedAt { place: Some("0x6000".to_owned()), frame: frame("svc", "0x10") },
            frames: frames.collect(),
            ..Site::default()
        }
    }

    fn module(name: &str, build_id: &str) -> Module {
        Module {
            name: name.to_owned(),
            path: format!("/usr/bin/{name}"),
            build_id: (!build_id.is_empty()).then(|| build_id.to_owned()),
        }
    }

    fn modules() -> Vec<Module> {
        vec![module("svc", "abc123"), module("libc.so.6", "")]
    }

    /// What is written to metrics and reports today must be found tomorrow.
    #[test]
    fn ids_are_for_ever() {
        assert_eq!(id(&site(), &modules()).as_deref(), Some("73a1626bbb086301"));
    }

    /// Where a file is mapped does not matter; where in it, which build of it, and in which order do.
    #[test]
    fn what_tells_sites_apart() {
        let own = id(&site(), &modules());
        let mut elsewhere = site();
        for frame in &mut elsewhere.frames {
            frame.address = Some("0x1".to_owned());
        }
        elsewhere.opened_at.place = Some("0x2".to_owned());
        elsewhere.granules_pinned = 7;
        assert_eq!(id(&elsewhere, &modules()), own);

        let mut others = vec![id(&site(), &[module("svc", "def456"), module("libc.so.6", "")])];
        let mut other = |change: fn(&mut Site)| {
            let mut site = site();
            change(&mut site);
            others.push(id(&site, &modules()));
        };
        other(|site| site.frames[1].frame.module_offset = Some("0x31".to_owned()));
        other(|site| site.frames[1].frame.module = Some("libm.so.6".to_owned()));
        other(|site| site.frames.reverse());
        other(|site| drop(site.frames.pop()));
        other(|site| site.opened_at.frame.module_offset = Some("0x11".to_owned()));
        other(|site| site.opened_at.place = None);
        others.push(own);
        let count = others.len();
        assert!(others.iter().all(Option::is_some));
        others.sort();
        others.dedup();
        assert_eq!(others.len(), count);
    }

    /// A frame without a name means nothing outside its process.
    #[test]
    fn unknown_frames_give_none() {
        let mut spoilt = site();
        spoilt.frames[1].frame = Frame::default();
        assert_eq!(id(&spoilt, &modules()), None);
        assert_eq!(id(&Site { frames: Vec::new(), ..site() }, &modules()), None);
        let mut named = site();
        named.frames[1].frame.module_offset = None;
        assert_eq!(id(&named, &modules()), None);
        named.frames[1].frame.function = Some("generated".to_owned());
        assert!(id(&named, &modules()).is_some());
    }
}
