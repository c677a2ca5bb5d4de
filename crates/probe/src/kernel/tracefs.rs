//! The tracing file system: where it is, and what it says about an event.
//!
//! It is read for the numbers and record layouts of tracepoints; nothing is ever written to it. Called by
//! the checks and by the loader.

use std::{
    io,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
};

use super::{Format, FormatError, HostView, format::is_identifier};

/// Where it is mounted by itself, and where it shows inside of debugfs.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// A file that every tracefs has, and that costs nothing to read.
const MARK: &str = "events/header_page";
const MOUNT_BY_HAND: &str = "mount -t tracefs nodev /sys/kernel/tracing";

/// Why an event's description cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TracefsError {
    /// It is mounted nowhere.
    #[error("tracefs is not mounted; as root: {MOUNT_BY_HAND}")]
    NotMounted,
    /// It is mounted, and we may not read it.
    #[error("tracefs may not be read by this user: run as root, or with CAP_DAC_READ_SEARCH")]
    Denied,
    /// It could not be mounted.
    #[error("cannot mount tracefs; as root, outside of a container: {MOUNT_BY_HAND}")]
    Mount(#[source] Errno),
    /// Not a name that an event can have.
    #[error("`{0}` is not the name of a tracepoint")]
    Name(String),
    /// The kernel has no such event.
    #[error("this kernel has no tracepoint {category}:{event}")]
    NoEvent {
        /// Its category.
        category: String,
        /// Its name.
        event: String,
    },
    /// Its description could not be read.
    #[error("cannot read the format of tracepoint {category}:{event}")]
    Read {
        /// Its category.
        category: String,
        /// Its name.
        event: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Its description is not one.
    #[error("the format of tracepoint {category}:{event} is not understood")]
    Format {
        /// Its category.
        category: String,
        /// Its name.
        event: String,
        /// What is wrong with it.
        source: FormatError,
    },
}

/// A mounted tracefs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracefs {
    root: PathBuf,
}

impl Tracefs {
    /// Finds it where it is usually mounted.
    pub fn find(host: &dyn HostView) -> Result<Self, TracefsError> {
        let mut denied = false;
        for place in PLACES {
            let root = PathBuf::from(place);
            match host.read(&root.join(MARK)) {
                Ok(_) => return Ok(Self { root }),
                Err(error) => denied |= error.kind() == io::ErrorKind::PermissionDenied,
            }
        }
        Err(if denied { TracefsError::Denied } else { TracefsError::NotMounted })
    }

    /// Takes it where the caller has mounted it.
    #[must_use]
    pub fn at(root: PathBuf) -> Self {
        Self { root }
    }

    /// Where it is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The layout of an event's record.
    pub fn format(
        &self,
        host: &dyn HostView,
        category: &str,
        event: &str,
    ) -> Result<Format, TracefsError> {
        if let Some(bad) = [category, event].into_iter().find(|name| !is_identifier(name)) {
            return Err(TracefsError::Name(bad.to_owned()));
        }
        let names = || (category.to_owned(), event.to_owned());
        let path = self.root.join("events").join(category).join(event).join("format");
        let text = host.read(&path).map_err(|source| {
            let (category, event) = names();
            if source.kind() == io::ErrorKind::NotFound {
                TracefsError::NoEvent { category, event }
            } else {
                TracefsError::Read { category, event, source }
            }
        })?;
        Format::parse(&text).map_err(|source| {
            let (category, event) = names();
            TracefsError::Format { category, event, source }
        })
    }
}

/// Finds tracefs, and mounts it at its usual directory if it is not mounted. That is visible to the whole mount
/// namespace, as it is when `mount` or `perf` does it; callers that mind mount it elsewhere themselves
/// and use [`Tracefs::at`].
pub fn ensure_mounted(host: &dyn HostView) -> Result<Tracefs, TracefsError> {
    match Tracefs::find(host) {
        Err(TracefsError::NotMounted) => {}
        found => return found,
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    match mount(Some("nodev"), PLACES[0], Some("tracefs"), flags, None::<&str>) {
        // Busy: it was mounted in between.
        Ok(()) | Err(Errno::EBUSY) => Tracefs::find(host),
        Err(errno) => Err(TracefsError::Mount(errno)),
    }
}
