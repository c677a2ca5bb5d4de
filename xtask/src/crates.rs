//! `cargo xtask crates`: the workspace's crates and their arrows, from `cargo metadata`, as a picture in ARCHITECTURE.md.
//!
//! Also the rules about them, which `ci` checks: the order of the layers, and which crates may have which packages. Rules
//! about a crate that the workspace does not have are passed over with a note.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use fs_err as fs;

use crate::{artifacts, work};

/// The layers, from the top. A crate depends on crates of lower layers only.
const LAYERS: [&[&str]; 9] = [
    &["drainprof-bench"],
    &["drainprof-ebpf", "drainprof-fuzz", "drainprof-tests", "xtask"],
    &["drainprof-daemon"],
    &["drainprof-node"],
    &["drainprof-observe"],
    &["drainprof-probe", "drainprof-report"],
    &["drainprof-census"],
    &["drainprof-process", "drainprof-profile"],
    &["drainprof-common"],
];

/// Packages that are nowhere in the tree of a crate's dependencies.
const FREE_OF: [(&str, &[&str]); 1] =
    [("drainprof-report", &["aya", "axum", "clap", "rusqlite", "tokio"])];

/// Packages that few crates depend on. The first of these crates has to exist for the rule to hold.
const KEPT_TO: [(&str, &[&str]); 3] = [
    ("aya", &["drainprof-probe"]),
    ("aya-log", &["drainprof-probe"]),
    ("clap", &["drainprof-daemon", "drainprof-bench", "drainprof-tests", "xtask"]),
];

const PAGE: &str = "ARCHITECTURE.md";
const BEGIN: &str = "<!-- crates: `cargo xtask crates` writes this -->\n";
const END: &str = "<!-- crates: end -->\n";

/// Arguments of `crates`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write nothing; fail where the picture is stale or a rule is broken.
    #[arg(long)]
    check: bool,
}

/// Each crate of the workspace, and what it depends on directly, packages from elsewhere included.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Draws the picture, or checks it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let root = work::root()?;
    if args.check {
        return check(&root);
    }
    let path = root.join(PAGE);
    let page = fs::read_to_string(&path)?;
    fs::write(&path, with_picture(&page, &picture(&graph(&root)?))?)?;
    Ok(())
}

/// Fails where the picture is stale or a rule is broken.
pub(crate) fn check(root: &Path) -> Result<()> {
    let graph = graph(root)?;
    let mut breaches = layers(&graph);
    breaches.extend(kept(&graph));
    for (name, packages) in FREE_OF {
        if !graph.contains_key(name) {
            work::note(format!("there is no crate {name}: its dependencies are not checked"));
            continue;
        }
        let tree = tree(root, name)?;
        let found = packages.iter().filter(|package| tree.contains(**package));
        breaches.extend(found.map(|package| {
            format!("{name} has {package} in its tree: `cargo tree -p {name} -i {package}`")
        }));
    }
    let page = fs::read_to_string(root.join(PAGE))?;
    if with_picture(&page, &picture(&graph))? != page {
        breaches.push(format!("the picture in {PAGE} is stale: run `cargo xtask crates`"));
    }
    if !breaches.is_empty() {
        bail!("{} breaches:\n  {}", breaches.len(), breaches.join("\n  "));
    }
    Ok(())
}

fn graph(root: &Path) -> Result<Graph> {
    let metadata = artifacts::metadata(root)?;
    let packages = metadata.workspace_packages().into_iter();
    Ok(packages
        .map(|package| {
            let names = package.dependencies.iter().map(|dependency| dependency.name.clone());
            (package.name.to_string(), names.collect())
        })
        .collect())
}

/// Every package in the tree of a crate's dependencies, those of its tests left out.
fn tree(root: &Path, name: &str) -> Result<BTreeSet<String>> {
    let mut cargo = work::cargo(root);
    cargo.args(["tree", "--locked", "-p", name, "-e", "normal,build"]);
    cargo.args(["--prefix", "none", "--format", "{p}"]);
    let tree = work::read("read the tree of dependencies", "see above", &mut cargo)?;
    Ok(tree.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
}

/// Breaches of the order of the layers.
fn layers(graph: &Graph) -> Vec<String> {
    let layer = |name: &String| LAYERS.iter().position(|layer| layer.contains(&name.as_str()));
    let mut breaches = Vec::new();
    for (name, dependencies) in graph {
        let Some(own) = layer(name) else {
            breaches.push(format!("{name} has no layer: name it in LAYERS of xtask/src/crates.rs"));
            continue;
        };
        let upwards = dependencies.iter().filter(|other| layer(other).is_some_and(|at| at <= own));
        breaches.extend(upwards.map(|other| {
            format!("{name} depends on {other}, which is not below it: see LAYERS of xtask/src/crates.rs")
        }));
    }
    breaches
}

/// Breaches of the rules about packages that few crates depend on.
fn kept(graph: &Graph) -> Vec<String> {
    let mut breaches = Vec::new();
    for (package, allowed) in KEPT_TO {
        if !allowed.first().is_some_and(|first| graph.contains_key(*first)) {
            work::note(format!(
                "who depends on {package} is not checked: its crate does not exist"
            ));
            continue;
        }
        let others = graph.iter().filter(|(name, dependencies)| {
            dependencies.contains(package) && !allowed.contains(&name.as_str())
        });
        breaches.extend(others.map(|(name, _)| {
            format!("{name} depends on {package}, which only {} may", allowed.join(", "))
        }));
    }
    breaches
}

/// The graph without the arrows that follow from others, as a Mermaid diagram.
fn picture(graph: &Graph) -> String {
    let inner =
        |name: &String| graph.get(name).into_iter().flatten().filter(|n| graph.contains_key(*n));
    let mut text = String::from("```mermaid\ngraph TD\n");
    for name in graph.keys() {
        let mut todo: Vec<_> = inner(name).flat_map(inner).collect();
        let mut implied = BTreeSet::new();
        while let Some(next) = todo.pop() {
            if implied.insert(next) {
                todo.extend(inner(next));
            }
        }
        let direct: Vec<_> = inner(name).filter(|other| !implied.contains(other)).collect();
        if direct.is_empty() && !graph.values().any(|others| others.contains(name)) {
            let _ = writeln!(text, "    {name}");
        }
        for other in direct {
            let _ = writeln!(text, "    {name} --> {other}");
        }
    }
    text + "```\n"
}

/// The page with this picture between its marks.
fn with_picture(page: &str, picture: &str) -> Result<String> {
    let lacks =
        || format!("{PAGE} lacks the marks of the picture, {} and {}", BEGIN.trim(), END.trim());
    let (before, rest) = page.split_once(BEGIN).with_context(lacks)?;
    let (_, after) = rest.split_once(END).with_context(lacks)?;
    Ok(format!("{before}{BEGIN}{picture}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::{BEGIN, END, Graph, kept, layers, picture, with_picture};

    fn graph(edges: &[(&str, &[&str])]) -> Graph {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        edges.iter().map(|(name, others)| ((*name).to_owned(), owned(others))).collect()
    }

    /// Arrows that follow from others are left out, as are packages from elsewhere; a crate without arrows is shown.
    #[test]
    fn pictures_are_reduced() {
        let graph =
            graph(&[("a", &["b", "c", "serde"]), ("b", &["c"]), ("c", &[]), ("d", &["serde"])]);
        let arrows = "```mermaid\ngraph TD\n    a --> b\n    b --> c\n    d\n```\n";
        assert_eq!(picture(&graph), arrows);
    }

    /// Arrows go downwards only, not within a layer; each crate has a layer.
    #[test]
    fn layers_are_kept() {
        let downwards = [("drainprof-daemon", &["drainprof-common", "serde"][..])];
        assert!(layers(&graph(&downwards)).is_empty());
        let others: [(_, &[&str]); 3] = [
            ("drainprof-common", &["drainprof-daemon"]),
            ("drainprof-probe", &["drainprof-report"]),
            ("drainprof-new", &[]),
        ];
        assert_eq!(layers(&graph(&others)).len(), 3);
    }

    /// Packages stay where they may be, from when their crate exists.
    #[test]
    fn packages_are_kept() {
        assert!(kept(&graph(&[("drainprof-daemon", &["aya", "clap"])])).is_empty());
        let both = graph(&[("drainprof-daemon", &["aya"]), ("drainprof-probe", &["aya", "clap"])]);
        assert_eq!(kept(&both).len(), 2);
    }

    /// What stands between the marks is replaced, all else stays; without marks it is an error.
    #[test]
    fn pages_are_renewed() {
        let page = format!("a\n{BEGIN}old\n{END}b\n");
        assert_eq!(with_picture(&page, "new\n").unwrap(), format!("a\n{BEGIN}new\n{END}b\n"));
        assert!(with_picture("a\n", "new\n").is_err());
    }
}
