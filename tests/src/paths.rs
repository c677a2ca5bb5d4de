//! Call paths: the truth of `targets/paths.h` against the sites of a report.
//!
//! A truth's chain names functions, the allocating one first, separated by ` < `:
//! `name@mark` is a frame at the line that the source marks with `mark: …`; `~part` a frame whose name
//! contains it; `*` any number of frames whose source is not one of ours; `name@mark…` the same frame over
//! and over, to the end. Inlined functions are frames here.

use std::{fs, sync::OnceLock};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{compare::Expect, environment, tracer::Traced};

/// Bytes of a granule of `targets/paths.h`.
const GRANULE_BYTES: u64 = 4096;

/// A function of a call path, inlined ones included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its name, or empty.
    pub function: String,
    /// Its source file, or empty.
    pub file: String,
    /// The line in it, or 0.
    pub line: u64,
    /// The file that it is mapped from, or empty.
    pub module: String,
}

/// The functions of a site's path, the allocating one first.
#[must_use]
pub fn steps(site: &Value) -> Vec<Step> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut steps = Vec::new();
    for frame in list(&site["frames"]) {
        let step = |of: &Value| Step {
            function: text(&of["function"]),
            file: text(&of["file"]),
            line: of["line"].as_u64().unwrap_or_default(),
            module: text(&frame["module"]),
        };
        // What was inlined stands with the outermost first.
        steps.extend(list(&frame["inlined"]).iter().rev().map(step));
        steps.push(step(frame));
    }
    steps
}

/// A path as a message shows it.
#[must_use]
pub fn shown(steps: &[Step]) -> String {
    let one = |step: &Step| {
        let file = step.file.rsplit('/').next().unwrap_or_default();
        match (step.function.is_empty(), step.line) {
            (true, _) => format!("? ({})", step.module),
            (_, 0) => format!("{} ({})", step.function, step.module),
            (_, line) => format!("{} {file}:{line}", step.function),
        }
    };
    steps.iter().map(one).collect::<Vec<_>>().join(" < ")
}

/// Where a source has `mark: NAME`: the source's name, and the line.
///
/// # Errors
/// If no source of the targets has the mark, or several lines have.
pub fn marked(mark: &str) -> Result<(String, u64)> {
    let all = sources().as_ref().map_err(|why| anyhow::anyhow!("{why}"))?;
    let mut found = all.marks.iter().filter(|(name, _, _)| name == mark);
    let (_, file, line) = found.next().with_context(|| format!("no source has `mark: {mark}`"))?;
    anyhow::ensure!(found.next().is_none(), "several lines have `mark: {mark}`");
    Ok((file.clone(), *line))
}

/// The targets' sources.
struct Sources {
    /// Their names.
    names: Vec<String>,
    /// Mark, source, line.
    marks: Vec<(String, String, u64)>,
}

fn sources() -> &'static Result<Sources, String> {
    static SOURCES: OnceLock<Result<Sources, String>> = OnceLock::new();
    SOURCES.get_or_init(|| read_sources().map_err(|error| format!("{error:#}")))
}

fn read_sources() -> Result<Sources> {
    let directory = environment::targets().join("sources");
    let mut sources = Sources { names: Vec::new(), marks: Vec::new() };
    for entry in
        fs::read_dir(&directory).with_context(|| format!("list {}", directory.display()))?
    {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        for (line, number) in text.lines().zip(1..) {
            let mark = line.split_once("mark: ").and_then(|(_, rest)| rest.split(' ').next());
            sources.marks.extend(mark.map(|mark| (mark.to_owned(), name.clone(), number)));
        }
        sources.names.push(name);
    }
    Ok(sources)
}

/// Whether a file is one of the targets' sources.
fn is_ours(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or_default();
    sources().as_ref().is_ok_and(|all| all.names.iter().any(|ours| ours == name))
}

/// What a chain says of one frame.
#[derive(Clone, Debug)]
enum Item {
    Others,
    Frame { name: String, part: bool, at: Option<(String, u64)>, again: bool },
}

fn items(chain: &str, lines: bool) -> Result<Vec<Item>> {
    let item = |word: &str| {
        if word == "*" {
            return Ok(Item::Others);
        }
        let (word, again) = word.strip_suffix('…').map_or((word, false), |word| (word, true));
        let (word, part) = word.strip_prefix('~').map_or((word, false), |word| (word, true));
        let (name, mark) = word.split_once('@').map_or((word, None), |(n, m)| (n, Some(m)));
        let at = mark.filter(|_| lines).map(marked).transpose()?;
        Ok(Item::Frame { name: name.to_owned(), part, at, again })
    };
    chain.split(" < ").map(item).collect()
}

fn is_named(step: &Step, name: &str, part: bool) -> bool {
    if part {
        return step.function.contains(name);
    }
    // C++ functions have their arguments behind their names, and parts that were split off a remark.
    let rest = step.function.strip_prefix(name);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('(') || rest.starts_with(" ["))
}

fn fits(items: &[Item], steps: &[Step]) -> bool {
    match items.split_first() {
        None => steps.is_empty(),
        Some((Item::Others, rest)) => {
            fits(rest, steps)
                || steps
                    .split_first()
                    .is_some_and(|(step, others)| !is_ours(&step.file) && fits(items, others))
        }
        Some((Item::Frame { name, part, at, again }, rest)) => {
            let Some((step, others)) = steps.split_first() else { return false };
            let is_there = at.as_ref().is_none_or(|(file, line)| {
                step.line == *line && step.file.rsplit('/').next() == Some(file)
            });
            is_named(step, name, *part)
                && is_there
                && (fits(rest, others) || (*again && fits(items, others)))
        }
    }
}

/// How sites are compared.
#[derive(Clone, Debug)]
pub struct Sites {
    lines: bool,
    left_out: Vec<String>,
    /// How many allocations of a path may be reported by a part of it, because it was not known yet.
    late: u64,
    expect: Expect,
}

impl Default for Sites {
    fn default() -> Self {
        Self { lines: true, left_out: Vec::new(), late: 0, expect: Expect::default() }
    }
}

impl Sites {
    /// Names alone: nothing is known of lines.
    #[must_use]
    pub fn without_lines(mut self) -> Self {
        self.lines = false;
        self
    }

    /// A key of sites that is not compared.
    #[must_use]
    pub fn leave_out(mut self, key: &str) -> Self {
        self.left_out.push(key.to_owned());
        self
    }

    /// Up to `count` allocations in all may stand at cut paths.
    #[must_use]
    pub fn late(mut self, count: u64) -> Self {
        self.late = count;
        self
    }

    /// What is expected of the rest of the report.
    #[must_use]
    pub fn expect(mut self, change: impl FnOnce(Expect) -> Expect) -> Self {
        self.expect = change(self.expect);
        self
    }

    /// Checks the sites, and everything else, of a traced target.
    ///
    /// # Panics
    /// With every difference.
    pub fn check(&self, traced: &Traced) {
        let found = self.all_differences(traced);
        assert!(
            found.is_empty(),
            "truth and report differ:\n  {}\nstderr:\n{}",
            found.join("\n  "),
            traced.outcome.talk()
        );
    }

    /// All differences between a traced target and what was reported of it.
    #[must_use]
    pub fn all_differences(&self, traced: &Traced) -> Vec<String> {
        let report = traced.outcome.report();
        let mut found = Vec::new();
        for truth in &traced.truths {
            let target = list(&report["targets"]).iter().find(|target| {
                target["pid"] == truth["pid"] && !list(&target["allocators"]).is_empty()
            });
            match target {
                Some(target) => found.extend(self.differences(truth, &target["allocators"][0])),
                None => found.push(format!("no target {}", truth["pid"])),
            }
        }
        let rest = self.expect.differences(&traced.truths, report, traced.outcome.code);
        found.extend(rest);
        found
    }

    /// All differences between the paths of a truth and the sites of an allocator.
    #[must_use]
    pub fn differences(&self, truth: &Value, allocator: &Value) -> Vec<String> {
        let mut found = sums(allocator);
        let Some(sites) = allocator["sites"].as_array() else {
            found.push("the allocator has no sites".to_owned());
            return found;
        };
        let mut left: Vec<(&Value, Vec<Step>)> =
            sites.iter().map(|site| (site, steps(site))).collect();
        let allocates = |path: &&Value| count(&path["site"], "allocated") > 0;
        for path in list(&truth["paths"]).iter().filter(allocates) {
            let (name, chain) = (&path["name"], path["chain"].as_str().unwrap_or_default());
            let items = match items(chain, self.lines) {
                Ok(items) => items,
                Err(error) => {
                    found.push(format!("{name}: {error:#}"));
                    continue;
                }
            };
            let Some(at) = left.iter().position(|(_, steps)| fits(&items, steps)) else {
                found.push(format!("{name}: no site has the path {chain}"));
                continue;
            };
            let (site, _) = left.swap_remove(at);
            for (key, value) in path["site"].as_object().into_iter().flatten() {
                let seen = &site[key.as_str()];
                if !self.is_same(value, seen) && !self.left_out.contains(key) {
                    found.push(format!("{name}: {key}: truth {value}, report {seen}"));
                }
            }
        }
        let cut: u64 = left.iter().map(|(site, _)| count(site, "allocated")).sum();
        if cut > self.late {
            for (site, steps) in left {
                found.push(format!(
                    "surplus site ({}, {} allocated): {}",
                    site["path_end"],
                    site["allocated"],
                    shown(&steps)
                ));
            }
        }
        found
    }

    /// Whether a figure of a site is the truth's, but for what stands at cut paths.
    fn is_same(&self, truth: &Value, seen: &Value) -> bool {
        match (truth.as_u64(), seen.as_u64()) {
            (Some(truth), Some(seen)) if self.late > 0 => {
                // Objects have less than a granule's bytes, granules this many.
                seen <= truth && truth - seen <= self.late * GRANULE_BYTES
            }
            _ => truth == seen,
        }
    }
}

/// What must hold of the sites of any allocator that shows all of them.
#[must_use]
pub fn sums(allocator: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let sites = list(&allocator["sites"]);
    let ids = sites.iter().all(|site| !site["live"].is_null());
    if allocator["sites_total"] != sites.len() {
        found.push(format!("{} sites listed of {}", sites.len(), allocator["sites_total"]));
    }
    let sum = |key: &str| sites.iter().map(|site| count(site, key)).sum::<u64>();
    for (key, pointer) in [
        ("allocated", "/objects/allocated"),
        ("allocated_bytes", "/objects/allocated_bytes"),
        ("live", "/objects/live"),
        ("live_bytes", "/objects/live_bytes"),
        ("objects", "/pins/objects"),
    ] {
        let whole = allocator.pointer(pointer).and_then(Value::as_u64);
        // Without ids of objects it is not known which of them are live.
        if let Some(whole) = whole
            && (ids || !key.starts_with("live"))
            && sum(key) != whole
        {
            found.push(format!("sites have {} of {whole} {pointer}", sum(key)));
        }
    }
    let pinned = allocator["granules"]["pinned"].as_u64().unwrap_or_default();
    let mut before = u64::MAX;
    for site in sites {
        let of = |key: &str| count(site, key);
        let path = || shown(&steps(site));
        let classes: u64 = ["near_miss", "moderate", "fundamental", "undecided"]
            .iter()
            .map(|class| count(&site["classes"], class))
            .sum();
        if classes != of("objects") {
            found.push(format!(
                "classes {} of {} pins: {}",
                site["classes"],
                of("objects"),
                path()
            ));
        }
        let mut rule = |holds: bool, what: &str| {
            if !holds {
                found.push(format!("{what}: {}", path()));
            }
        };
        rule(of("objects_live") <= of("objects"), "more live pins than pins");
        rule(of("granules_pinned") <= of("objects"), "more pinned granules than pins");
        rule(of("granules_pinned") <= pinned, "more pinned granules than pinned closes");
        rule(of("granules_retained") <= of("granules_pinned"), "more retained than pinned");
        rule(of("granules_pinned") <= before, "not ranked by pinned granules");
        before = of("granules_pinned");
        let share = site["share"].as_f64();
        let expected = (pinned > 0).then(|| of("granules_pinned") as f64 / pinned as f64);
        let same = match (share, expected) {
            (Some(share), Some(expected)) => (share - expected).abs() < 1e-6,
            (None, None) => true,
            _ => false,
        };
        rule(same, "a wrong share");
    }
    found
}

fn count(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Item, Step, fits, is_named, items, steps};

    fn step(function: &str, file: &str, line: u64) -> Step {
        let (function, file) = (function.to_owned(), file.to_owned());
        Step { function, file, line, module: "svc".to_owned() }
    }

    fn chain(text: &str) -> Vec<Item> {
        items(text, false).unwrap_or_default()
    }

    /// Inlined functions are frames, the innermost first.
    #[test]
    fn inlined_functions_are_steps() {
        let site = json!({"frames": [
            {"function": "outer", "file": "a.c", "line": 3, "module": "svc", "inlined": [
                {"function": "middle", "file": "a.c", "line": 2}, {"function": "inner", "file": "b.h", "line": 1}]},
            {"function": null, "module": "libc.so.6", "inlined": []}]});
        let names: Vec<(String, u64)> =
            steps(&site).into_iter().map(|step| (step.function, step.line)).collect();
        let expected = [("inner", 1), ("middle", 2), ("outer", 3), ("", 0)];
        assert_eq!(names, expected.map(|(name, line)| (name.to_owned(), line)));
    }

    /// One frame more, one less, or another: no match. Foreign frames are passed by where the chain says so.
    #[test]
    fn chains_fit_whole_paths() {
        let path = [step("a", "", 0), step("x", "/usr/lib/x.c", 1), step("main", "", 0)];
        assert!(fits(&chain("a < * < main"), &path));
        assert!(fits(&chain("a < ~x < main"), &path));
        assert!(!fits(&chain("a < main"), &path));
        assert!(!fits(&chain("a < * < main < *  < start"), &path));
        assert!(!fits(&chain("a < *  < other"), &path));
        let ours = [step("a", "", 0), step("x", "tests/targets/paths.c", 1), step("main", "", 0)];
        assert!(!fits(&chain("a < * < main"), &ours), "ours must be named");
        let deep = vec![step("r", "", 0); 9];
        assert!(fits(&chain("r < r…"), &deep) && !fits(&chain("r < q…"), &deep));
    }

    /// A mark is a line of a source, and a frame elsewhere does not fit.
    #[test]
    fn lines_are_compared() {
        let (file, line) = super::marked("made").unwrap();
        let items = items("make_object@made", true).unwrap();
        let at = |line| fits(&items, &[step("make_object", &format!("/src/{file}"), line)]);
        assert!(at(line) && !at(line + 1));
        assert!(super::items("f@no-such-mark", true).is_err());
    }

    /// Arguments and remarks may stand behind a name; a longer name is another.
    #[test]
    fn names() {
        for (full, same) in
            [("f", true), ("f(int)", true), ("f [clone .cold]", true), ("ff", false)]
        {
            assert_eq!(is_named(&step(full, "", 0), "f", false), same, "{full}");
        }
        assert!(is_named(&step("a::{lambda()#1}::operator()", "", 0), "operator()", true));
    }
}
