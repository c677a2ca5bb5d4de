//! Truth against report, field by field.
//!
//! Every key that a truth names must stand in the report with the same value; every allocator of the
//! report must be one of the truth; every loss must be the one that the truth names (else 0); and the
//! sum rule of granules must hold. A difference is one line that names the field.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use drainprof_common::loss::{LOSSES, Loss, Severity};
use serde_json::Value;

use crate::{
    environment,
    tracer::{Outcome, Traced},
};

/// How often a loss is expected.
#[derive(Clone, Copy, Debug)]
pub enum Count {
    /// Exactly so often.
    Exactly(u64),
    /// At least so often.
    AtLeast(u64),
    /// It does not matter.
    Any,
}

/// What is expected beyond the truth.
#[derive(Clone, Debug, Default)]
pub struct Expect {
    losses: BTreeMap<String, Count>,
    left_out: Vec<String>,
    roles_unseen: Vec<String>,
    code: Option<i32>,
}

impl Expect {
    /// A loss that the truth does not name, or names otherwise.
    #[must_use]
    pub fn loss(mut self, name: &str, count: Count) -> Self {
        self.losses.insert(name.to_owned(), count);
        self
    }

    /// A key of an allocator, or a whole group of them, that is not compared: `granules.open_peak`, `objects`.
    #[must_use]
    pub fn leave_out(mut self, path: &str) -> Self {
        self.left_out.push(path.to_owned());
        self
    }

    /// Truths of this role belong to processes that were not traced: the report must not know them.
    #[must_use]
    pub fn unseen(mut self, role: &str) -> Self {
        self.roles_unseen.push(role.to_owned());
        self
    }

    /// Another exit code than the losses suggest.
    #[must_use]
    pub fn code(mut self, code: i32) -> Self {
        self.code = Some(code);
        self
    }

    /// Checks a traced target.
    ///
    /// # Panics
    /// With every difference.
    pub fn check(&self, traced: &Traced) {
        let differences =
            self.differences(&traced.truths, traced.outcome.report(), traced.outcome.code);
        assert!(
            differences.is_empty(),
            "truth and report differ:\n  {}\nstderr:\n{}",
            differences.join("\n  "),
            traced.outcome.talk()
        );
    }

    /// All differences.
    #[must_use]
    pub fn differences(&self, truths: &[Value], report: &Value, code: Option<i32>) -> Vec<String> {
        let mut found = Vec::new();
        if truths.is_empty() {
            found.push("the target printed no truth".to_owned());
        }
        let unseen = |truth: &&Value| {
            self.roles_unseen.iter().any(|role| truth["role"].as_str() == Some(role))
        };
        let seen: Vec<&Value> = truths.iter().filter(|truth| !unseen(truth)).collect();
        let mut targets: Vec<&Value> = list(&report["targets"]).iter().collect();
        for truth in &seen {
            // Incarnations of one pid (exec) stand in the order in which they lived.
            let active = |target: &&Value| {
                target["pid"] == truth["pid"] && !list(&target["allocators"]).is_empty()
            };
            match targets.iter().position(active) {
                Some(place) => self.allocators(truth, targets.remove(place), &mut found),
                None if idle(truth) => {}
                None => found.push(format!(
                    "pid {} ({}): the report has no target for it",
                    truth["pid"], truth["role"]
                )),
            }
        }
        for target in targets.iter().filter(|target| !list(&target["allocators"]).is_empty()) {
            found.push(format!("pid {}: in the report, but not in the truth", target["pid"]));
        }
        for target in list(&report["targets"]) {
            for allocator in list(&target["allocators"]) {
                found.extend(sum_rule(allocator));
            }
        }
        let complete = self.losses(&seen, report, &mut found);
        if report["complete"] != Value::Bool(complete) {
            found.push(format!("complete: truth {complete}, report {}", report["complete"]));
        }
        let expected = self.code.unwrap_or(if complete { 0 } else { 5 });
        if code != Some(expected) {
            found.push(format!("exit code: expected {expected}, got {code:?}"));
        }
        found
    }

    fn allocators(&self, truth: &Value, target: &Value, found: &mut Vec<String>) {
        let pid = &truth["pid"];
        // An allocator that did nothing has no known instance.
        let mut reported: Vec<&Value> = list(&target["allocators"])
            .iter()
            .filter(|allocator| !nothing_happened(allocator))
            .collect();
        for allocator in list(&truth["allocators"]) {
            if nothing_happened(allocator) {
                continue;
            }
            let instance = &allocator["instance"];
            let same = |candidate: &&Value| candidate["instance"] == *instance;
            let Some(place) = reported.iter().position(same) else {
                found.push(format!(
                    "pid {pid}: the report has no allocator with instance {instance}"
                ));
                continue;
            };
            let other = reported.remove(place);
            let place = format!("pid {pid} instance {instance}");
            self.subset(&place, "", allocator, other, found);
        }
        for extra in reported {
            found.push(format!("pid {pid}: unexpected allocator, instance {}", extra["instance"]));
        }
    }

    fn subset(
        &self,
        place: &str,
        path: &str,
        truth: &Value,
        report: &Value,
        found: &mut Vec<String>,
    ) {
        if self.left_out.iter().any(|left| left == path) {
            return;
        }
        if let Some(keys) = truth.as_object() {
            for (key, value) in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                self.subset(place, &path, value, &report[key.as_str()], found);
            }
        } else if truth != report {
            found.push(format!("{place}: {path}: truth {truth}, report {report}"));
        }
    }

    /// Compares all losses; returns whether the report should call itself complete.
    fn losses(&self, truths: &[&Value], report: &Value, found: &mut Vec<String>) -> bool {
        let (mut complete, preempted) = (true, environment::is_preempted());
        for info in LOSSES {
            let Some(got) = report["losses"][info.name].as_u64() else {
                found.push(format!("losses.{}: not in the report", info.name));
                continue;
            };
            let told: u64 =
                truths.iter().filter_map(|truth| truth["losses"][info.name].as_u64()).sum();
            let usual = usual(info.loss, told, preempted);
            let expected = self.losses.get(info.name).copied().unwrap_or(usual);
            let good = match expected {
                Count::Exactly(count) => got == count,
                Count::AtLeast(count) => got >= count,
                Count::Any => true,
            };
            if !good {
                found.push(format!("losses.{}: expected {expected:?}, report {got}", info.name));
            }
            complete &= got == 0 || info.severity == Severity::Notice;
        }
        complete
    }
}

impl Traced {
    /// Checks that truth and report agree to the last event, and that nothing was lost.
    ///
    /// # Panics
    /// With every difference.
    pub fn exact(&self) {
        Expect::default().check(self);
    }
}

/// How often a loss is expected that the truth has `told` times, on a kernel that preempts threads inside it or not.
fn usual(loss: Loss, told: u64, preempted: bool) -> Count {
    match loss {
        // What is reported of the first moments of a call path depends on who is let run; so does which programs are gone
        // before they are examined.
        Loss::PathNotCaptured | Loss::PinsWhileLearning | Loss::ProgramUnexamined => Count::Any,
        // A thread that is preempted inside a call of `bpf(2)` keeps the kernel from running programs on its CPU. The
        // report is incomplete then, and all else is compared as ever.
        Loss::TracepointSkipped if preempted => Count::Any,
        _ => Count::Exactly(told),
    }
}

/// The one allocator of a complete report on one process; its sums add up, and unless its kind is `drain` it
/// has no DSR and no pins.
///
/// # Panics
/// If the report is not complete, or says of the allocator what its kind does not know.
pub fn only_allocator(outcome: &Outcome) -> Result<Value> {
    let report = outcome.report();
    assert_eq!(report["complete"], true, "{}", report["losses"]);
    allocator_of_any(outcome)
}

/// As [`only_allocator`], of a report that need not be complete.
///
/// # Panics
/// If the report says of the allocator what its kind does not know.
pub fn allocator_of_any(outcome: &Outcome) -> Result<Value> {
    let report = outcome.report();
    let targets = report["targets"].as_array().context("a list of targets")?;
    let all: Vec<&Value> =
        targets.iter().filter_map(|target| target["allocators"].as_array()).flatten().collect();
    ensure!(all.len() == 1, "one allocator, not {all:?}\n{}", outcome.talk());
    let allocator = all[0].clone();
    assert_eq!(sum_rule(&allocator), None);
    if allocator["kind"] != "drain" {
        let granules = &allocator["granules"];
        assert_eq!(allocator["dsr"], Value::Null);
        assert_eq!((&granules["drainable"], &granules["pinned"]), (&0.into(), &0.into()));
    }
    Ok(allocator)
}

/// `opened + opened_before == closed + migrated + ended_with_parent + open_now + reopened + destroyed + left_open`, for
/// any allocator of a report.
#[must_use]
pub fn sum_rule(allocator: &Value) -> Option<String> {
    let count = |key: &str| allocator["granules"][key].as_u64().unwrap_or(u64::MAX / 8);
    let (came, gone) = (
        count("opened") + count("opened_before"),
        count("closed")
            + count("open_now")
            + count("reopened")
            + count("destroyed")
            + ["migrated", "ended_with_parent", "left_open"]
                .map(|key| allocator["granules"][key].as_u64().unwrap_or_default())
                .iter()
                .sum::<u64>(),
    );
    (came != gone).then(|| {
        format!(
            "instance {}: {came} granules came, {gone} went or stay: {}",
            allocator["instance"], allocator["granules"]
        )
    })
}

/// Whether a truth is that nothing happened: then there is nothing to report.
fn idle(truth: &Value) -> bool {
    list(&truth["allocators"]).iter().all(nothing_happened)
}

/// Whether all counts of an allocator, of a truth or a report, are zero.
fn nothing_happened(allocator: &Value) -> bool {
    let zero = |value: &Value| value.as_u64().is_none_or(|count| count == 0);
    let group = |group: &Value| group.as_object().is_none_or(|keys| keys.values().all(zero));
    ["granules", "objects", "retention"].iter().all(|key| group(&allocator[*key]))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use drainprof_common::loss::LossInfo;
    use serde_json::json;

    use super::*;

    fn losses() -> Value {
        LOSSES
            .iter()
            .map(|info| (info.name.to_owned(), json!(0)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }

    fn granules(closed: u64) -> Value {
        json!({"opened": 3, "opened_before": 0, "closed": closed, "open_now": 3 - closed, "reopened": 0, "destroyed": 0})
    }

    fn report(closed: u64) -> Value {
        json!({"complete": true, "losses": losses(), "targets": [{"pid": 7, "allocators": [
            {"instance": "0x1", "granules": granules(closed)}]}]})
    }

    fn truth(closed: u64) -> Value {
        json!({"pid": 7, "role": "main", "losses": {},
            "allocators": [{"instance": "0x1", "granules": {"closed": closed}}]})
    }

    /// Equal counts pass, one event more or less is named by its field.
    #[test]
    fn one_event_is_seen() {
        assert_eq!(
            Expect::default().differences(&[truth(2)], &report(2), Some(0)),
            Vec::<String>::new()
        );
        let found = Expect::default().differences(&[truth(2)], &report(1), Some(0));
        assert_eq!(found, ["pid 7 instance \"0x1\": granules.closed: truth 2, report 1"]);
    }

    /// A missing process, a surplus one, a loss that is not expected, a wrong exit code: each is a difference.
    #[test]
    fn nothing_passes_unseen() {
        let mut other = report(2);
        other["targets"][0]["pid"] = json!(8);
        other["losses"]["read_fault"] = json!(1);
        let found = Expect::default().differences(&[truth(2)], &other, Some(0));
        assert_eq!(found.len(), 5, "{found:?}");
        assert!(!Expect::default().differences(&[], &report(2), Some(0)).is_empty());
    }

    /// Tracepoints are skipped where threads are preempted in the kernel, and nowhere else; no other loss is let pass.
    #[test]
    fn skipped_tracepoints() {
        let passed = |preempted| {
            let any =
                |info: &&LossInfo| !matches!(usual(info.loss, 0, preempted), Count::Exactly(0));
            LOSSES.iter().filter(any).map(|info| info.name).collect::<Vec<_>>()
        };
        let (usual, preempted) = (passed(false), passed(true));
        let added: Vec<_> = preempted.into_iter().filter(|name| !usual.contains(name)).collect();
        assert_eq!(added, ["tracepoints_skipped"]);
    }

    /// The sum rule fails by one granule.
    #[test]
    fn sum_rule_counts() {
        assert_eq!(sum_rule(&json!({"granules": granules(1)})), None);
        let mut wrong = granules(1);
        wrong["reopened"] = json!(1);
        assert!(sum_rule(&json!({"granules": wrong})).is_some());
    }
}
