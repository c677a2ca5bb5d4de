//! One thing looked at, and what came of it.

use std::io;

use serde::Serialize;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Not there, and not needed; or not looked at, because something else is missing.
    Off,
    /// Works, with a restriction that is named.
    Warn,
    /// Does not work.
    Fail,
}

/// What kind of thing a check is about: decides what a failure is reported as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// What we may do: another user, capability or namespace fixes it.
    Privilege,
    /// What the kernel can do.
    Feature,
    /// What there is enough of.
    Resource,
    /// Good to know, and to have in a bug report.
    Info,
}

/// One thing looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// A short, stable name; docs/doctor.md has a section on it.
    pub name: &'static str,
    /// How it came out.
    pub status: Status,
    /// What kind of thing it is.
    pub class: Class,
    /// Nothing can be attached while this fails.
    pub required: bool,
    /// What was found.
    pub found: String,
    /// What that means for the user; empty where all is well.
    pub means: String,
    /// What to do about it; empty where there is nothing to do.
    #[serde(rename = "mend")]
    pub fix: String,
}

impl Check {
    /// A check that is not required and has come out well, with nothing found yet.
    #[must_use]
    pub fn new(name: &'static str, class: Class) -> Self {
        Self {
            name,
            status: Status::Ok,
            class,
            required: false,
            found: String::new(),
            means: String::new(),
            fix: String::new(),
        }
    }

    /// A check whose file could not be read for a reason that says nothing about the thing itself.
    pub(super) fn unreadable(
        name: &'static str,
        class: Class,
        path: &str,
        error: &io::Error,
    ) -> Self {
        Self::new(name, class).warn(
            format!("{path} cannot be read: {error}"),
            "this was not checked; what depends on it may fail later",
            "run as root, outside of a container, with /proc and /sys mounted",
        )
    }

    /// Nothing can be attached while this fails.
    #[must_use]
    pub fn required(self) -> Self {
        Self { required: true, ..self }
    }

    /// It is as it should be.
    #[must_use]
    pub fn ok(self, found: impl Into<String>) -> Self {
        Self { status: Status::Ok, found: found.into(), ..self }
    }

    /// It is not there, and that is all right.
    #[must_use]
    pub fn off(self, found: impl Into<String>, means: impl Into<String>) -> Self {
        Self { status: Status::Off, found: found.into(), means: means.into(), ..self }
    }

    /// It restricts what we can do.
    #[must_use]
    pub fn warn(
        self,
        found: impl Into<String>,
        means: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { status: Status::Warn, fix: fix.into(), ..self.with(found, means) }
    }

    /// It does not work.
    #[must_use]
    pub fn fail(
        self,
        found: impl Into<String>,
        means: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { status: Status::Fail, fix: fix.into(), ..self.with(found, means) }
    }

    fn with(self, found: impl Into<String>, means: impl Into<String>) -> Self {
        Self { found: found.into(), means: means.into(), ..self }
    }
}

/// What all checks together say about attaching.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing that is required fails.
    Ready,
    /// A privilege is missing. Features cannot be detected for sure without it.
    Privilege,
    /// The kernel lacks something.
    Feature,
    /// There is not enough of something.
    Resource,
}

impl Verdict {
    /// The exit code of a command that needed what is missing.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Ready => 0,
            Self::Privilege => 77,
            Self::Feature => 69,
            Self::Resource => 1,
        }
    }
}

/// What the checks together say. Privileges come first: without them the other answers are guesses.
#[must_use]
pub fn verdict(checks: &[Check]) -> Verdict {
    let fails = |class: Class| {
        checks.iter().any(|c| c.required && c.status == Status::Fail && c.class == class)
    };
    if fails(Class::Privilege) {
        Verdict::Privilege
    } else if fails(Class::Feature) || fails(Class::Info) {
        Verdict::Feature
    } else if fails(Class::Resource) {
        Verdict::Resource
    } else {
        Verdict::Ready
    }
}
