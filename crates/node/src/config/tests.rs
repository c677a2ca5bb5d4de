use std::{fs, net::SocketAddr, path::Path, time::Duration};

use drainprof_profile::Level;
use drainprof_report::values::{Bytes, Time};

use super::{schema::Node, *};

mod select;

fn read(text: &str) -> Result<Config, ConfigErrors> {
    parse(text, Path::new("drainprof.toml"))
}

/// The errors' lines, in order.
fn errors(text: &str) -> Vec<String> {
    read(text).unwrap_err().0.iter().map(ToString::to_string).collect()
}

/// The default file really is the default, and so is a file that says nothing.
#[test]
fn default_file_is_the_default() {
    assert_eq!(read(&default_file()).unwrap(), Config::default());
    assert_eq!(read("").unwrap(), Config::default());
}

/// Each example in the default file is a value that is taken, and another one than the default.
#[test]
fn examples_are_taken() {
    let mut seen = 0;
    for (path, node) in Node::all() {
        let Some(example) = node.example() else { continue };
        seen += 1;
        let (section, key) = path.rsplit_once('.').unwrap();
        let config = read(&format!("[{section}]\n{key} = {example}\n")).unwrap();
        let changes = Config::default().difference(&config);
        let [change] = changes.as_slice() else { panic!("{changes:?}") };
        assert_eq!(change.key, path);
    }
    assert!(seen > 5, "only {seen} examples were found");
}

/// Every key has a description, and a default or an example; every default is within its limits.
#[test]
fn every_key_is_described() {
    let values = Config::default().table();
    let all = Node::all();
    assert!(all.len() > 90, "only {} keys were found", all.len());
    for (path, node) in all {
        let about = node.about();
        assert!(about.ends_with('.'), "{path}: {about}");
        if node.is_section() {
            continue;
        }
        match difference::find(&values, &path) {
            Some(value) => assert_eq!(node.check(value), Ok(()), "{path}"),
            None => assert!(node.example().is_some(), "{path}"),
        }
        assert!(!node.expected().is_empty(), "{path}");
    }
}

/// Every kind of value arrives in the configuration.
#[test]
fn values_arrive() {
    let config = read(
        r#"
        [daemon]
        interval = "1m 30s"
        level = "objects"
        attach = "file"
        profiles = ["nginx", "apr"]
        [maps]
        granules = 65_536
        objects = 0x1000
        ring = "2MiB"
        [listen]
        address = "[::1]:9000"
        [store]
        enabled = false
        max_age = "7d"
        max_bytes = "64MiB"
        [metrics]
        labels = ["unit"]
        [otlp]
        endpoint = "http://collector:4318/v1/metrics"
        "#,
    )
    .unwrap();
    assert_eq!(config.daemon.interval, Time::seconds(90));
    assert_eq!(config.daemon.level, Level::Objects);
    assert_eq!(config.daemon.attach, Attach::File);
    assert_eq!(config.daemon.profiles, ["nginx", "apr"]);
    assert_eq!((config.maps.granules, config.maps.objects), (Some(65_536), Some(4096)));
    assert_eq!(config.maps.ring, Some(Bytes(2 << 20)));
    assert_eq!(
        config.listen.address,
        Address::At(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 9000)))
    );
    assert!(!config.store.enabled);
    assert_eq!(config.store.max_age, Time::seconds(7 * 86_400));
    assert_eq!(config.store.max_bytes, Bytes(64 << 20));
    assert_eq!(config.metrics.labels, [Label::Unit]);
    assert_eq!(config.otlp.endpoint.as_deref(), Some("http://collector:4318/v1/metrics"));
}

/// All errors are reported at once, each with line, column, key and what to do.
#[test]
fn all_errors_are_told() {
    let text = "[daemon]\nintervall = \"5s\"\nlevel = \"deep\"\n\n[store]\n  max_age = 30\nmax_bytes = \"1KiB\"\n\
                enabled = \"yes\"\n\n[selct]\nrules = []\n\n[metrics]\nmax_age = \"1d\"\nlabels = [\"pid\", \"unit\", 3]\n";
    let wanted = [
        "drainprof.toml:2:1: unknown key `intervall` in [daemon]; did you mean `interval`?",
        "drainprof.toml:3:9: daemon.level: unknown variant `deep`; expected one of `close`, `boundary`, `objects`, `stacks`",
        "drainprof.toml:6:13: store.max_age: invalid value: integer `30`; expected a time with its unit: \
         \"30s\", \"5m\", \"1h 30m\", \"30d\"",
        "drainprof.toml:7:13: store.max_bytes: 1KiB is not from 4MiB to 1TiB",
        "drainprof.toml:8:11: store.enabled: invalid type: string \"yes\"; expected a boolean",
        "drainprof.toml:10:2: unknown section `selct`; did you mean [select]?",
        "drainprof.toml:14:1: unknown key `max_age` in [metrics]; it belongs in [store]",
        "drainprof.toml:15:11: metrics.labels: unknown variant `pid`; expected one of `exe`, `cgroup`, \
         `container`, `unit`, `pod`, `namespace`",
        "drainprof.toml:15:26: metrics.labels: wrong type; expected a list, each entry one of \"exe\", \"cgroup\", \
         \"container\", \"unit\", \"pod\", \"namespace\"",
    ];
    assert_eq!(errors(text), wanted);
}

/// A key outside of its section, a section that is no table, and broken TOML are reported where they stand.
#[test]
fn misplaced_and_broken() {
    assert_eq!(
        errors("interval = \"5s\"\nstore = 3\n"),
        [
            "drainprof.toml:1:1: unknown section `interval`; it belongs in [daemon]",
            "drainprof.toml:2:1: `store` is a section; write [store] on a line of its own, and its keys below",
        ]
    );
    let broken = errors("[daemon]\ninterval = \nlevel = \"stacks\"\nlevel = \"stacks\"\n");
    assert!(broken.len() >= 2, "both errors of the syntax: {broken:?}");
    assert!(broken[0].starts_with("drainprof.toml:2:"), "{broken:?}");
    assert!(broken[1].starts_with("drainprof.toml:4:"), "{broken:?}");
}

/// Values at the edge of their limits are taken, those beyond are not.
#[test]
fn limits() {
    for (text, fits) in [
        ("[daemon]\ninterval = \"100ms\"", true),
        ("[daemon]\ninterval = \"99ms\"", false),
        ("[daemon]\ninterval = \"-5s\"", false),
        ("[daemon]\ninterval = \"1mo\"", false),
        ("[daemon]\ninterval = \"1h\"", true),
        ("[daemon]\ninterval = \"3601s\"", false),
        ("[daemon]\nkill_file = \"relative\"", false),
        ("[daemon]\nprofiles = [\"a\", \"a\"]", false),
        ("[maps]\ngranules = 0", false),
        ("[maps]\ngranules = -1", false),
        ("[maps]\ngranules = 99999999999999999999", false),
        ("[maps]\ngranules = 16_777_216", true),
        ("[store]\nmax_bytes = \"lots\"", false),
        ("[listen]\naddress = \"localhost\"", false),
        ("[listen]\naddress = \"off\"", true),
        ("[otlp]\nendpoint = \"ftp://x\"", false),
        ("[otlp]\nendpoint = \"http://name:password@x\"", false),
        ("[window]\nlength = \"20m\"", false),
        ("[window]\nlength = \"20m\"\nlongest = \"20m\"\nbudget_per_hour = \"30m\"", true),
        ("[window]\nlength = \"5m\"\nlongest = \"4m\"", false),
        ("[window]\nlength = \"5m\"\nbudget_per_hour = \"4m\"", false),
        ("[window]\nbudget_per_hour = \"0s\"", true),
    ] {
        assert_eq!(read(text).is_ok(), fits, "{text}");
    }
    let contradiction = errors("\n[window]\nlength = \"20m\"");
    assert!(
        contradiction[0].starts_with("drainprof.toml:3:1: window.length: "),
        "{contradiction:?}"
    );
}

fn variables(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

/// Files in the order of their names, key by key; then the environment; then the command line.
#[test]
fn sources_win_in_their_order() {
    let directory = tempfile::tempdir().unwrap();
    let main = directory.path().join("drainprof.toml");
    let more = directory.path().join("conf.d");
    fs::create_dir(&more).unwrap();
    fs::write(
        &main,
        "[daemon]\ninterval = \"1s\"\nprofiles = [\"nginx\", \"apr\"]\n\
         [store]\nmax_age = \"1d\"\nmax_bytes = \"8MiB\"\n",
    )
    .unwrap();
    fs::write(more.join("20.toml"), "[store]\nmax_age = \"3d\"\n").unwrap();
    fs::write(more.join("10.toml"), "[store]\nmax_age = \"2d\"\n[daemon]\nprofiles = [\"php\"]\n")
        .unwrap();
    fs::write(more.join(".hidden.toml"), "nonsense").unwrap();
    fs::write(more.join("30.toml.bak"), "nonsense").unwrap();
    let sources = Sources {
        file: Some(main.clone()),
        required: true,
        directory: Some(more.clone()),
        environment: variables(&[
            ("DRAINPROF_DAEMON_INTERVAL", "2s"),
            ("DRAINPROF_METRICS_LABELS", "unit, exe"),
            ("DRAINPROF_STORE_PAHT", "/x"),
            ("DRAINPROF_LEVEL", "stacks"),
        ]),
        set: vec!["daemon.interval=3s".to_owned(), "maps.granules = 77".to_owned()],
    };
    let loaded = load(&sources).unwrap();
    let config = &loaded.config;
    assert_eq!(config.daemon.interval, Time::seconds(3));
    assert_eq!(config.daemon.profiles, ["php"]);
    assert_eq!(config.store.max_age, Time::seconds(3 * 86_400));
    assert_eq!(config.store.max_bytes, Bytes(8 << 20));
    assert_eq!(config.metrics.labels, [Label::Unit, Label::Exe]);
    assert_eq!(config.maps.granules, Some(77));
    assert_eq!(config.daemon.level, Level::Boundary, "DRAINPROF_LEVEL is for other commands");
    assert_eq!(
        loaded.notes,
        ["environment variable DRAINPROF_STORE_PAHT: [store] has no such key"]
    );
    assert_eq!(loaded.files, [main.clone(), more.join("10.toml"), more.join("20.toml")]);
    assert_eq!(loaded.origins["daemon.interval"], Origin::CommandLine);
    assert_eq!(loaded.origins["store.max_age"], Origin::File(more.join("20.toml"), 2));
    assert_eq!(loaded.origins["store.max_bytes"], Origin::File(main, 6));
    assert!(!loaded.origins.contains_key("daemon.level"));

    // What is shown says the same, and where each value comes from.
    let shown = show(&loaded);
    assert_eq!(read(&shown).unwrap(), *config);
    assert!(shown.contains("interval = \"3s\"  # command line\n"), "{shown}");
    assert!(
        shown.contains(&format!("max_age = \"3d\"  # {}:2\n", more.join("20.toml").display())),
        "{shown}"
    );
    assert!(shown.contains("level = \"boundary\"\n"), "{shown}");
}

/// Errors of all sources are reported together, each with its place.
#[test]
fn errors_of_all_sources() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.toml"), "[store]\nenabled = 1\n").unwrap();
    fs::write(directory.path().join("b.toml"), b"[store]\n# \xff\n").unwrap();
    fs::create_dir(directory.path().join("c.toml")).unwrap();
    let sources = Sources {
        file: Some(directory.path().join("missing.toml")),
        required: true,
        directory: Some(directory.path().to_owned()),
        environment: variables(&[
            ("DRAINPROF_STORE_MAX_AGE", "old"),
            ("DRAINPROF_SELECT_RULES", "x"),
        ]),
        set: vec![
            "maps.objects=many".to_owned(),
            "nonsense".to_owned(),
            "store.paht=/x".to_owned(),
        ],
    };
    let errors = load(&sources).unwrap_err();
    let reported: Vec<_> = errors.0.iter().map(ToString::to_string).collect();
    let place = directory.path().display();
    let wanted = [
        format!("{place}/missing.toml: cannot read the configuration"),
        format!("{place}/a.toml:2:11: store.enabled"),
        format!("{place}/b.toml: cannot read the configuration: byte 10 is not UTF-8 text"),
        format!("{place}/c.toml: cannot read the configuration: it is not a regular file"),
        "environment variable DRAINPROF_SELECT_RULES: select.rules: invalid type: string"
            .to_owned(),
        "environment variable DRAINPROF_STORE_MAX_AGE: store.max_age: `old`".to_owned(),
        "option --set maps.objects=many: ".to_owned(),
        "option --set nonsense: there is no `=`".to_owned(),
        "option --set store.paht=/x: unknown key `paht` in [store]; did you mean `path`?"
            .to_owned(),
    ];
    for wanted in &wanted {
        assert!(
            reported.iter().any(|reported| reported.starts_with(wanted)),
            "{wanted}\n{reported:#?}"
        );
    }
    assert_eq!(reported.len(), wanted.len(), "{reported:#?}");
    assert_eq!(errors.to_string().lines().count(), wanted.len());

    // Without a main file, the defaults are in force.
    let nothing =
        Sources { file: Some(directory.path().join("missing.toml")), ..Sources::default() };
    assert_eq!(load(&nothing).unwrap().config, Config::default());
}

/// A pipe is not waited for, and neither file nor directory is read without end.
#[test]
fn hostile_files() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("big.toml");
    let reported = |file: &Path| {
        let sources = Sources { file: Some(file.to_owned()), required: true, ..Sources::default() };
        load(&sources).unwrap_err().to_string()
    };
    fs::write(&file, "#".repeat(MAX_FILE_BYTES as usize + 1)).unwrap();
    assert!(reported(&file).contains("more than 1048576 bytes"));
    let pipe = directory.path().join("pipe.toml");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(reported(&pipe).contains("not a regular file"));

    let many = tempfile::tempdir().unwrap();
    for number in 0..=MAX_FILES {
        fs::write(many.path().join(format!("{number}.toml")), "").unwrap();
    }
    let sources = Sources { directory: Some(many.path().to_owned()), ..Sources::default() };
    assert!(load(&sources).unwrap_err().to_string().contains("more than 256 files"));
}

/// A reload says which keys differ, and what it takes for each.
#[test]
fn difference() {
    let old = read("[window]\nlength = \"60s\"\n[maps]\ngranules = 5\n").unwrap();
    let new = read("[window]\nlength = \"2m\"\n[store]\nenabled = false\n").unwrap();
    let change = |key: &str, from: Option<&str>, to: Option<&str>, applies| Change {
        key: key.to_owned(),
        from: from.map(str::to_owned),
        to: to.map(str::to_owned),
        applies,
    };
    assert_eq!(
        old.difference(&new),
        [
            change("maps.granules", Some("5"), None, Applies::Restart),
            change("window.length", Some("\"1m\""), Some("\"2m\""), Applies::AtOnce),
            change("store.enabled", Some("true"), Some("false"), Applies::Restart),
        ]
    );
    assert_eq!(new.difference(&new), []);
    // What needs a restart stays as it is; the rest is applied.
    let applied = new.applied_to(&old);
    assert_eq!(applied.maps, old.maps);
    assert!(applied.store.enabled);
    assert_eq!(applied.window.length, Time::seconds(120));
    let same = read("[window]\nlength = \"1m\"\n[maps]\ngranules = 5\n").unwrap();
    assert_eq!(old.difference(&same), [], "the same time, written differently");
}

/// The reference page says what the keys say now (`UPDATE_DOCS=1` rewrites it).
#[test]
fn page_is_fresh() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, reference()).unwrap();
    }
    let page = fs::read_to_string(&path).unwrap();
    assert!(page == reference(), "docs/configuration.md is stale: run with UPDATE_DOCS=1");
}

/// The configuration that is shipped for Kubernetes is one.
#[test]
fn shipped_configuration_is_taken() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes/daemonset.yaml");
    let manifest = fs::read_to_string(path).unwrap();
    let (_, rest) = manifest.split_once(".toml: |\n").unwrap();
    let text: Vec<_> = rest.lines().map_while(|line| line.strip_prefix("    ")).collect();
    let text = text.join(
        "
",
    );
    let config = read(&text).unwrap();
    assert_ne!(config.difference(&Config::default()), []);
}

/// Sections of other modules are merged key by key too, in the tables in them as well, and shown and compared.
#[test]
fn policies_are_merged() {
    let directory = tempfile::tempdir().unwrap();
    let [one, two] = ["1.toml", "2.toml"].map(|name| directory.path().join(name));
    fs::write(
        &one,
        "[triggers]\nrepeat = \"2h\"\n[triggers.dsr_low]\nwindow = false\nenabled = false\n",
    )
    .unwrap();
    fs::write(&two, "[triggers.dsr_low]\nwindow = true\n[governor]\nbudget = \"2%\"\n").unwrap();
    let sources = Sources {
        directory: Some(directory.path().to_owned()),
        set: vec!["governor.enabled=false".to_owned()],
        ..Sources::default()
    };
    let loaded = load(&sources).unwrap();
    let values = loaded.config.table();
    let low = &values["triggers"]["dsr_low"];
    assert_eq!(low["window"].as_bool(), Some(true), "the later file wins");
    assert_eq!(low["enabled"].as_bool(), Some(false), "and says nothing of other keys");
    assert_eq!(values["governor"]["enabled"].as_bool(), Some(false));
    assert_eq!(loaded.origins["triggers.dsr_low.window"], Origin::File(two, 2));
    assert_eq!(loaded.origins["triggers.dsr_low.enabled"], Origin::File(one, 5));
    assert_eq!(loaded.origins["governor.enabled"], Origin::CommandLine);
    assert_eq!(read(&show(&loaded)).unwrap(), loaded.config);

    let changes = Config::default().difference(&loaded.config);
    let keys: Vec<_> = changes.iter().map(|change| change.key.as_str()).collect();
    for key in
        ["triggers.dsr_low.enabled", "triggers.repeat", "governor.budget", "governor.enabled"]
    {
        assert!(keys.contains(&key), "{key}: {changes:?}");
    }
}

/// Unknown keys, wrong types and contradictions of a rule's settings are found where they stand.
#[test]
fn nested_sections_are_checked() {
    assert_eq!(
        errors("[triggers.dsr_low]\nbelwo = \"80%\"\nfor = 3\n[governor]\nbudget = \"200%\"\n"),
        [
            "drainprof.toml:2:1: unknown key `belwo` in [triggers.dsr_low]; did you mean `below`?",
            "drainprof.toml:3:7: triggers.dsr_low.for: invalid value: integer `3`; expected a time with its unit: \
             \"30s\", \"5m\", \"1h 30m\", \"30d\"",
            "drainprof.toml:5:10: governor.budget: 200% is not from 0.01% to 100%",
        ]
    );
    let contradiction = errors("[triggers.dsr_low]\n\nbelow = \"90%\"\nback = \"80%\"\n");
    assert!(contradiction[0].starts_with("drainprof.toml:3:1: triggers.dsr_low.below: "));
}

/// Brackets without end, and errors without end, are refused in short.
#[test]
fn hostile_texts_are_bounded() {
    let torn = errors(&"rules = [{ acbc\"]\n[select]\n".repeat(5000));
    assert_eq!(torn.len(), 1);
    assert!(torn[0].contains("brackets nest too deep"), "{torn:?}");
    let many: Vec<String> = (0..5000).map(|key| format!("x{key} = 1\n")).collect();
    let many = errors(&many.concat());
    assert_eq!(many.len(), 101);
    assert!(many.iter().any(|error| error.contains("more than 100 errors")), "{many:?}");
}

proptest::proptest! {
    /// A time or a size that is shown is read as the same.
    #[test]
    fn shown_values_are_read_again(millis in 100_u64..3_600_000, bytes in (1_u64 << 20)..(1 << 40)) {
        let mut config = Config::default();
        config.daemon.interval = Duration::from_millis(millis).into();
        config.store.max_bytes = Bytes(bytes);
        let loaded = Loaded { config, origins: [].into(), files: vec![], notes: vec![] };
        proptest::prop_assert_eq!(read(&show(&loaded)).unwrap(), loaded.config);
    }

    /// Whatever a file holds, it is read or refused.
    #[test]
    fn any_text(text in "(\\[[a-z.\"]{0,8}\\]|[a-z_]{0,8} = [\\[\\]{}a-z0-9\"',.]{0,12}|\\PC{0,8}|\n){0,12}") {
        if let Err(errors) = read(&text) {
            proptest::prop_assert!(!errors.0.is_empty());
        }
    }
}
