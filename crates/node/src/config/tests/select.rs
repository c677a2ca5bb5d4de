//! Rules, and what they select.

use super::{
    super::{Facts, Selector, Why},
    errors, read,
};
use crate::Labels;

fn facts<'a>(exe: &'a str, labels: &'a Labels) -> Facts<'a> {
    Facts { exe, comm: "comm", labels }
}

fn selector(rules: &str) -> Selector {
    let config = read(&format!("[select]\n{rules}")).unwrap();
    Selector::new(&config.select, Some("/usr/bin/drainprof".to_owned()))
}

/// Without rules everything is watched but the daemon's own executable.
#[test]
fn selects_all_but_itself() {
    let labels = Labels::default();
    let all = selector("");
    assert_eq!(all.selects(&facts("/usr/sbin/nginx", &labels)), Ok(()));
    assert_eq!(all.selects(&facts("/usr/bin/drainprof", &labels)), Err(Why::Own));
    let included = selector("rules = [{ action = \"include\", exe = \"*\" }]");
    assert_eq!(included.selects(&facts("/usr/bin/drainprof", &labels)), Err(Why::Own));
}

/// The first rule that fits decides; with an including rule, what none fits is not watched.
#[test]
fn first_rule_decides() {
    let labels = Labels {
        unit: Some("backup-db.service".to_owned()),
        cgroup: Some("/system.slice/backup-db.service".to_owned()),
        container: None,
        ..Labels::default()
    };
    let rules = selector(
        "[[select.rules]]\naction = \"exclude\"\nunit = \"backup*.service\"\nexe = [\"tar\", \"/opt/*/dump\"]\n\
         [[select.rules]]\naction = \"include\"\ncgroup = \"/system.slice/*\"\n",
    );
    let excluded = Why::Excluded {
        number: 1,
        rule: r#"{ action = "exclude", exe = ["tar", "/opt/*/dump"], unit = "backup*.service" }"#
            .to_owned(),
    };
    assert_eq!(rules.selects(&facts("/bin/tar", &labels)), Err(excluded.clone()));
    assert_eq!(rules.selects(&facts("/opt/a/b/dump", &labels)), Err(excluded));
    assert_eq!(rules.selects(&facts("/bin/dump", &labels)), Ok(()), "a slash means the whole path");
    let other = Labels { unit: Some("web.service".to_owned()), ..Labels::default() };
    assert_eq!(rules.selects(&facts("/bin/tar", &other)), Err(Why::NotIncluded));
}

/// A label that a process does not have fits no pattern, not even `*`; backslashes mean themselves.
#[test]
fn patterns() {
    let contained = selector("rules = [{ action = \"include\", container = \"*\" }]");
    let labels = Labels { container: Some("8f2c".to_owned()), ..Labels::default() };
    assert_eq!(contained.selects(&facts("/svc", &labels)), Ok(()));
    assert_eq!(contained.selects(&facts("/svc", &Labels::default())), Err(Why::NotIncluded));
    let escaped = selector("rules = [{ action = \"include\", unit = 'dev-disk\\x2d*' }]");
    let labels = Labels { unit: Some("dev-disk\\x2duuid.swap".to_owned()), ..Labels::default() };
    assert_eq!(escaped.selects(&facts("/svc", &labels)), Ok(()));
}

/// Rules that say nothing, too much, or what is unknown are refused where they stand.
#[test]
fn bad_rules() {
    for (rule, reported) in [
        ("{ exe = \"x\" }", "missing key `action`"),
        ("{ action = \"include\" }", "without a pattern"),
        ("{ action = \"keep\", exe = \"x\" }", "unknown variant `keep`"),
        ("{ action = \"include\", unitt = \"x\" }", "did you mean `unit`?"),
        ("{ action = \"include\", exe = \"[\" }", "is not a pattern"),
        ("{ action = \"include\", exe = [] }", "an empty list"),
        ("{ action = \"include\", exe = 3 }", "not a pattern"),
        ("{ action = \"include\", exe = \"\" }", "a pattern of 0 bytes"),
        ("3", "invalid type: integer `3`; expected a table with `action` and patterns"),
    ] {
        let errors = errors(&format!("[select]\nrules = [\n  {rule},\n]\n"));
        assert_eq!(errors.len(), 1, "{rule}: {errors:?}");
        assert!(errors[0].starts_with("drainprof.toml:3:"), "{errors:?}");
        assert!(errors[0].contains(reported), "{rule}: {errors:?}");
    }
    let long = format!(
        "[select]\nrules = [{{ action = \"include\", exe = \"{}\" }}]\n",
        "{a,".repeat(400)
    );
    assert!(read(&long).is_err());
    let nested = format!("{}a{}", "{".repeat(251), "}".repeat(251));
    let nested = format!("[select]\nrules = [{{ action = \"include\", exe = \"{nested}\" }}]\n");
    assert!(errors(&nested)[0].contains("is not a pattern"), "{:?}", errors(&nested));
    let many = "{ action = \"include\", exe = \"x\" },".repeat(300);
    assert!(errors(&format!("[select]\nrules = [{many}]\n"))[0].contains("the limit is 256"));
}
