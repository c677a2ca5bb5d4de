//! The view of allocator calls outstanding: what is allocated and not freed, in bytes by call path.
//!
//! It is a census of a malloc's pages at level `stacks`, from a sample of them. Here is which of the `malloc-…` profiles
//! it takes in a process; the observing is done by `watch`, the estimating by `report`.

use std::sync::Arc;

use drainprof_probe::plan::match_objects;
use drainprof_process::Image;
use drainprof_profile::{Library, Profile};

/// The profiles of mallocs. Those that stand in for the C library's come before it: where one of them is mapped, glibc's is
/// mapped too and serves next to nothing.
pub const MALLOCS: [&str; 4] =
    ["malloc-jemalloc", "malloc-tcmalloc", "malloc-mimalloc", "malloc-glibc"];

/// What to observe for the view: a profile, at level `stacks`, and how many of the pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocations {
    /// Name of the profile.
    pub profile: String,
    /// One of so many pages is examined, and every object that is larger than a page; 1: all.
    pub one_in: u32,
}

/// No malloc of a process is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no malloc that a profile knows is mapped ({}): it is linked statically with one, or has its own; describe its \
     functions in a profile, and pass that with --profile", MALLOCS.join(", ")
)]
pub struct NoMalloc;

impl Allocations {
    /// Of the pages one in so many, where nothing else is asked for: a path with ten megabytes outstanding in small
    /// objects is then told to within a sixth, at 95 %.
    pub const ONE_IN: u32 = 16;

    /// What to observe of a process with these objects: the first of [`MALLOCS`] that it maps.
    ///
    /// # Errors
    /// If it maps none of them, as a program that is linked statically with its malloc.
    pub fn of(library: &Library, image: &Image, one_in: u32) -> Result<Self, NoMalloc> {
        let is_mapped = |profile: &&Arc<Profile>| match_objects(profile, image).is_ok();
        let found = MALLOCS.iter().filter_map(|name| library.get(name)).find(is_mapped);
        found.map(|profile| Self { profile: profile.name.clone(), one_in }).ok_or(NoMalloc)
    }
}

#[cfg(test)]
mod tests {
    use drainprof_process::{ElfCache, ImageOptions, Process};
    use drainprof_profile::Level;

    use super::*;

    fn own_image() -> Image {
        let process = Process::myself().unwrap();
        Image::load(&process, &ImageOptions { debug_dirs: Vec::new() }, &mut ElfCache::new())
            .unwrap()
    }

    /// This very process is served by the C library; one that maps no malloc is told so, with what was looked for.
    #[test]
    fn which_malloc() {
        let library = Library::built_in().unwrap();
        let mut image = own_image();
        let found = Allocations::of(&library, &image, Allocations::ONE_IN).unwrap();
        assert_eq!((found.profile.as_str(), found.one_in), ("malloc-glibc", 16));
        image.objects.retain(|object| !object.mapped.path.ends_with("libc.so.6"));
        let refused = Allocations::of(&library, &image, Allocations::ONE_IN).unwrap_err();
        assert!(refused.to_string().contains("malloc-jemalloc"), "{refused}");
    }

    /// Every malloc has a profile that can examine call paths; one that replaces the C library's is taken before it.
    #[test]
    fn all_have_profiles() {
        let library = Library::built_in().unwrap();
        for name in MALLOCS {
            let profile = library.get(name).unwrap();
            assert!(profile.implicit && profile.on_request, "{name}");
            assert!(drainprof_profile::levels(profile).contains(&Level::Stacks), "{name}");
        }
        assert_eq!(MALLOCS.last(), Some(&"malloc-glibc"));
    }
}
