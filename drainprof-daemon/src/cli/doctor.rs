//! `drainprof doctor`.

use std::io;

use anyhow::Result;

use super::{
    args::{DoctorArgs, PlainFormat},
    options,
};
use crate::{
    bpf,
    kernel::{self, Check, Class, LiveHost},
};

/// Says what this host allows.
pub(super) fn main(args: &DoctorArgs) -> Result<u8> {
    let host = LiveHost;
    if !options::tracefs_is_mounted(&host) {
        // An unmounted tracefs that we can mount is no finding. What is wrong otherwise, the checks say.
        let _ = kernel::ensure_mounted(&host);
    }
    let mut checks = kernel::run(&host);
    checks.push(self_test(host));
    let mut out = io::stdout().lock();
    match args.format {
        PlainFormat::Text => kernel::render_text(&checks, &mut out)?,
        PlainFormat::Json => kernel::render_json(&checks, &mut out)?,
    }
    Ok(kernel::verdict(&checks).exit_code())
}

/// Loads every program with small maps: what really works here.
fn self_test(host: LiveHost) -> Check {
    let class =
        if kernel::missing_privileges(&host).is_some() { Class::Privilege } else { Class::Feature };
    let check = Check::new(kernel::SELF_TEST, class).required();
    let result = options::offsets(&host).and_then(|offsets| Ok(bpf::self_test(offsets)?));
    match result {
        Ok(programs) => check.ok(format!("the kernel takes all {programs} eBPF programs")),
        Err(error) => check.fail(
            format!("{error:#}"),
            "the kernel side cannot be loaded; nothing can be attached",
            "mend what the other checks name; if they are all fine, report it with this line",
        ),
    }
}
