//! The kill switch: a request turns it on, and so does a file.

use std::path::Path;

/// The kill switch.
#[derive(Debug, Default)]
pub(super) struct KillSwitch {
    requested: bool,
    on: bool,
}

impl KillSwitch {
    /// Whether it is on: nothing is attached.
    pub(super) const fn is_on(&self) -> bool {
        self.on
    }

    /// Whether a request has turned it on.
    pub(super) const fn is_requested(&self) -> bool {
        self.requested
    }

    /// A request turns it on, or takes that back.
    pub(super) const fn request(&mut self, on: bool) {
        self.requested = on;
    }

    /// Looks for the file. Returns whether the switch has changed since the last time.
    pub(super) fn update(&mut self, file: &Path) -> bool {
        let on = self.requested || file.exists();
        std::mem::replace(&mut self.on, on) != on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Either the file or a request turns it on, and both must be gone to turn it off.
    #[test]
    fn file_and_request() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("kill");
        let mut switch = KillSwitch::default();
        assert!(!switch.update(&file) && !switch.is_on());
        switch.request(true);
        assert!(switch.update(&file) && switch.is_on() && switch.is_requested());
        std::fs::write(&file, "").unwrap();
        switch.request(false);
        assert!(!switch.update(&file) && switch.is_on());
        std::fs::remove_file(&file).unwrap();
        assert!(switch.update(&file) && !switch.is_on());
    }
}
