//! Which allocator of one report is which of the other.
//!
//! First by executable, process name and profile. Of what is left: by process name and profile, because
//! another build may lie in another directory; then by profile alone, because it may be called otherwise.
//! Each of these only where it leaves no choice.

use super::group::Group;

/// An allocator in both reports, or in one.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) before: Option<Group>,
    pub(super) after: Option<Group>,
}

type Key = fn(&Group) -> Vec<&str>;

const KEYS: [Key; 3] = [
    |group| vec![&group.exe, &group.comm, &group.profile, group.kind.name()],
    |group| vec![&group.comm, &group.profile, group.kind.name()],
    |group| vec![&group.profile, group.kind.name()],
];

/// The pairs: those in both in the order of the second report, then what only the second has, then what only
/// the first has.
pub(super) fn pairs(before: Vec<Group>, after: Vec<Group>) -> Vec<Pair> {
    let mut partner: Vec<Option<usize>> = vec![None; after.len()];
    let mut taken = vec![false; before.len()];
    for key in KEYS {
        let left = only(&before, key, |at| !taken[at]);
        let right = only(&after, key, |at| partner[at].is_none());
        for (names, at) in right {
            if let (Some(at), Some(Some(other))) = (at, left.get(&names)) {
                partner[at] = Some(*other);
                taken[*other] = true;
            }
        }
    }
    let mut before: Vec<Option<Group>> = before.into_iter().map(Some).collect();
    let (mut both, mut new) = (Vec::new(), Vec::new());
    for (at, group) in after.into_iter().enumerate() {
        let before = partner[at].and_then(|other| before[other].take());
        let pairs = if before.is_some() { &mut both } else { &mut new };
        pairs.push(Pair { before, after: Some(group) });
    }
    let gone = before.into_iter().flatten();
    both.extend(new);
    both.extend(gone.map(|group| Pair { before: Some(group), after: None }));
    both
}

/// Groups by key; `None` where several have the same.
fn only(
    groups: &[Group],
    key: Key,
    left: impl Fn(usize) -> bool,
) -> std::collections::BTreeMap<Vec<String>, Option<usize>> {
    let mut found = std::collections::BTreeMap::new();
    for (at, group) in groups.iter().enumerate().filter(|&(at, _)| left(at)) {
        let names = key(group).into_iter().map(str::to_owned).collect();
        found.entry(names).and_modify(|index| *index = None).or_insert(Some(at));
    }
    found
}
