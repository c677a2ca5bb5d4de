//! The files that probes are put into.

use std::{fs::File, path::PathBuf, sync::Arc};

use drainprof_process::{guarded, open_same};

use super::{BpfError, placing::Refused};
use crate::plan::Site;

/// Largest file that probes are put into, in bytes.
const MAX_FILE_BYTES: u64 = 16 << 30;

/// The files that probes are put into, which stay open until all probes of a process are in place.
#[derive(Debug, Default)]
pub struct OpenFiles(Vec<Opened>);

#[derive(Debug)]
struct Opened {
    inode: (u64, u64),
    path: PathBuf,
    file: Arc<File>,
}

impl OpenFiles {
    /// Opens the object once, and makes sure that it is the one that was planned for: the path goes through
    /// the process's own root, where it could have been replaced since. Probes are put into what is open here.
    pub(super) fn get(&mut self, site: &Site) -> Result<&Arc<File>, BpfError> {
        let is_its = |one: &Opened| one.inode == site.inode && one.path == site.open_path;
        let at = if let Some(known) = self.0.iter().position(is_its) {
            known
        } else {
            let (inode, path) = (site.inode, site.open_path.clone());
            let file = guarded(move || open_same(inode, [&*path], MAX_FILE_BYTES))
                .map_err(|source| failed(site, source))?
                .map_err(|source| failed(site, source))?;
            self.0.push(Opened { inode, path: site.open_path.clone(), file: Arc::new(file) });
            self.0.len() - 1
        };
        Ok(&self.0[at].file)
    }
}

pub(super) fn failed(
    site: &Site,
    source: impl std::error::Error + Send + Sync + 'static,
) -> BpfError {
    BpfError::attach(site.symbol.clone(), site.shown_path.clone(), site.file_offset, source)
}

pub(super) fn refused(site: &Site, refused: Refused) -> BpfError {
    match refused {
        Refused::Held(holder) => BpfError::Held { object: site.shown_path.clone(), holder },
        Refused::Late(since) => {
            BpfError::Late { object: site.shown_path.clone(), seconds: since.as_secs_f64() }
        }
        Refused::Kernel(error) => failed(site, error),
    }
}
