//! Who may use the control socket.

use std::ffi::CString;

use nix::unistd::{Gid, Uid, User, getgrouplist};

/// Root, the daemon's own user, and the members of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peers {
    own: u32,
    group: Option<(u32, String)>,
}

impl Peers {
    /// With the group's number and name.
    pub(super) fn new(group: Option<(u32, String)>) -> Self {
        Self { own: Uid::effective().as_raw(), group }
    }

    /// Whether a process of that user and primary group may. Its other groups are those that the system's databases
    /// list: what a process has dropped or been lent by hand does not count.
    pub(super) fn admit(&self, uid: u32, gid: u32) -> bool {
        self.admit_by(uid, gid, groups_of)
    }

    fn admit_by(&self, uid: u32, gid: u32, groups: impl Fn(u32) -> Vec<u32>) -> bool {
        uid == 0
            || uid == self.own
            || self
                .group
                .as_ref()
                .is_some_and(|(group, _)| gid == *group || groups(uid).contains(group))
    }

    /// In words.
    pub(super) fn who(&self) -> String {
        match &self.group {
            Some((_, name)) => format!("root and the members of the group {name} may"),
            None => "only root may; a group can be configured".to_owned(),
        }
    }
}

fn groups_of(uid: u32) -> Vec<u32> {
    let Ok(Some(user)) = User::from_uid(Uid::from_raw(uid)) else { return Vec::new() };
    let Ok(name) = CString::new(user.name) else { return Vec::new() };
    let groups = getgrouplist(&name, user.gid).unwrap_or_default();
    groups.into_iter().map(Gid::as_raw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Root, the own user, the group by primary or other membership; no others.
    #[test]
    fn few_may() {
        let peers = Peers { own: 500, group: Some((77, "drainprof".to_owned())) };
        let groups = |uid| if uid == 1001 { vec![5, 77] } else { vec![5] };
        assert!(peers.admit_by(0, 0, groups));
        assert!(peers.admit_by(500, 9, groups));
        assert!(peers.admit_by(1000, 77, groups));
        assert!(peers.admit_by(1001, 5, groups));
        assert!(!peers.admit_by(1002, 5, groups));
        let closed = Peers { group: None, ..peers };
        assert!(!closed.admit_by(1001, 77, groups));
        assert!(closed.who().contains("only root"));
        // The system's own databases, as far as every system has them.
        assert!(groups_of(0).contains(&0));
        assert!(groups_of(u32::MAX - 7).is_empty());
    }
}
