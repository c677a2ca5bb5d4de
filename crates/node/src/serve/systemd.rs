//! Word to systemd (`Type=notify`): started, alive, reloading, stopping. Without systemd, nothing happens.

use std::{io, time::Duration};

use sd_notify::NotifyState;

/// What systemd is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word<'a> {
    /// The daemon serves.
    Ready,
    /// One line on how it is, for `systemctl status`.
    Status(&'a str),
    /// The daemon's loop turns: the watchdog waits again.
    Alive,
    /// The configuration is read again; [`Word::Ready`] says that this is over.
    Reloading,
    /// The daemon stops.
    Stopping,
}

/// Tells it to the socket that `NOTIFY_SOCKET` names; without one, does nothing.
pub fn tell(word: Word<'_>) -> io::Result<()> {
    match word {
        Word::Ready => sd_notify::notify(&[NotifyState::Ready]),
        Word::Status(line) => {
            // A line feed would begin another assignment.
            let line = line.replace(['\n', '\r'], " ");
            sd_notify::notify(&[NotifyState::Status(&line)])
        }
        Word::Alive => sd_notify::notify(&[NotifyState::Watchdog]),
        // systemd wants to know when this began (Type=notify-reload).
        Word::Reloading => {
            sd_notify::notify(&[NotifyState::Reloading, NotifyState::monotonic_usec_now()?])
        }
        Word::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
    }
}

/// How often [`Word::Alive`] has to be told: half of what the unit's `WatchdogSec` allows. `None`: there is no watchdog.
#[must_use]
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixDatagram, process::Command};

    use super::*;

    /// What the other test starts with `NOTIFY_SOCKET` set: the environment is a process's own.
    #[test]
    #[ignore = "started by words_arrive, which gives it a socket"]
    fn tells_all_words() {
        assert_eq!(watchdog_interval(), Some(Duration::from_secs(15)));
        for word in
            [Word::Ready, Word::Status("3\nREADY=1"), Word::Alive, Word::Reloading, Word::Stopping]
        {
            tell(word).unwrap();
        }
    }

    /// Every word arrives at the socket, in order and in systemd's form.
    #[test]
    fn words_arrive() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "serve::systemd::tests::tells_all_words"])
            .env("NOTIFY_SOCKET", &path)
            .env("WATCHDOG_USEC", "30000000")
            .env_remove("WATCHDOG_PID")
            .output()
            .unwrap();
        assert!(child.status.success(), "{child:?}");
        let mut said = Vec::new();
        for _ in 0..5 {
            let mut bytes = [0; 256];
            let length = socket.recv(&mut bytes).unwrap();
            said.push(String::from_utf8(bytes[..length].to_vec()).unwrap().trim_end().to_owned());
        }
        assert_eq!(said[..3], ["READY=1", "STATUS=3 READY=1", "WATCHDOG=1"]);
        assert!(said[3].starts_with("RELOADING=1\nMONOTONIC_USEC="), "{said:?}");
        assert_eq!(said[4], "STOPPING=1");
    }

    /// Without systemd there is nobody to tell, and that is no failure.
    #[test]
    fn nobody_listens() {
        if std::env::var_os("NOTIFY_SOCKET").is_none() {
            tell(Word::Ready).unwrap();
        }
    }
}
