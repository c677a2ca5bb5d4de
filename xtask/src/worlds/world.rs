//! The distributions that programs of are read.

use fs_err as fs;

/// A distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum World {
    /// This machine.
    Host,
    /// Debian 12, whose packages this machine may not have.
    Bookworm,
    /// Debian 13.
    Trixie,
    /// Debian unstable, whose versions change.
    Sid,
}

/// All worlds, in the order of the run.
pub(super) const WORLDS: [World; 4] = [World::Host, World::Bookworm, World::Trixie, World::Sid];

impl World {
    /// What `--world` takes.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Sid => "sid",
        }
    }

    /// As the page names it.
    pub(super) fn distribution(self) -> String {
        match self {
            Self::Host => host_distribution(),
            Self::Bookworm => "Debian 12".to_owned(),
            Self::Trixie => "Debian 13".to_owned(),
            Self::Sid => "Debian unstable".to_owned(),
        }
    }
}

/// The name and version of this machine's distribution.
fn host_distribution() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.map(|value| value.trim_matches('"').to_owned())
    };
    match (value("ID").as_deref(), value("VERSION_ID")) {
        (Some("debian"), Some(version)) => format!("Debian {version}"),
        (Some(id), version) => format!("{id} {}", version.unwrap_or_default()).trim().to_owned(),
        (None, _) => "this machine".to_owned(),
    }
}
