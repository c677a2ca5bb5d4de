//! Messages to systemd (`Type=notify`): started, alive, reloading, stopping. Without systemd, nothing happens.

use std::{io, time::Duration};

use sd_notify::NotifyState;

/// What systemd gets to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// The daemon serves.
    Ready,
    /// One line on how it is, for `systemctl status`.
    Status(&'a str),
    /// The daemon's loop turns: the watchdog waits again.
    Alive,
    /// The configuration is read again; [`Message::Ready`] says that this is over.
    Reloading,
    /// The daemon stops.
    Stopping,
}

/// Sends it to the socket that `NOTIFY_SOCKET` names; without one, does nothing.
pub fn send(message: Message<'_>) -> io::Result<()> {
    match message {
        Message::Ready => sd_notify::notify(&[NotifyState::Ready]),
        Message::Status(line) => {
            // A line feed would begin another assignment.
            let line = line.replace(['\n', '\r'], " ");
            sd_notify::notify(&[NotifyState::Status(&line)])
        }
        Message::Alive => sd_notify::notify(&[NotifyState::Watchdog]),
        // systemd wants to know when this began (Type=notify-reload).
        Message::Reloading => {
            sd_notify::notify(&[NotifyState::Reloading, NotifyState::monotonic_usec_now()?])
        }
        Message::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
    }
}

/// How often [`Message::Alive`] has to be sent: half of what the unit's `WatchdogSec` allows. `None`: there is no watchdog.
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
    #[ignore = "started by messages_arrive, which gives it a socket"]
    fn sends_all_messages() {
        assert_eq!(watchdog_interval(), Some(Duration::from_secs(15)));
        for message in [
            Message::Ready,
            Message::Status("3\nREADY=1"),
            Message::Alive,
            Message::Reloading,
            Message::Stopping,
        ] {
            send(message).unwrap();
        }
    }

    /// Every message arrives at the socket, in order and in systemd's form.
    #[test]
    fn messages_arrive() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "serve::systemd::tests::sends_all_messages"])
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

    /// Without systemd nothing is sent, and that is no failure.
    #[test]
    fn without_systemd() {
        if std::env::var_os("NOTIFY_SOCKET").is_none() {
            send(Message::Ready).unwrap();
        }
    }
}
