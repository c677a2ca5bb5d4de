//! `drainprof doctor`.

use anyhow::Result;
use clap::Args;
use drainprof_observe::names::SymbolOptions;
use drainprof_probe::{
    bpf, kernel,
    kernel::{Check, Class, LiveHost, ProgramStatistics},
};
use drainprof_process::symbolize::{Helper, HelperError};

use super::{options, output, values::PlainFormat};

#[derive(Args, Debug)]
pub(super) struct DoctorArgs {
    /// Output format.
    #[arg(short = 'o', long, value_enum, default_value_t = PlainFormat::Text)]
    format: PlainFormat,
    /// Add verifier instructions and machine code bytes per eBPF program (always in JSON).
    #[arg(long)]
    programs: bool,
}

/// Says what this host allows.
pub(super) fn main(args: &DoctorArgs) -> Result<u8> {
    let host = LiveHost;
    if !options::tracefs_is_mounted(&host) {
        // An unmounted tracefs that we can mount is no finding. What is wrong otherwise, the checks say.
        let _ = kernel::ensure_mounted(&host);
    }
    let mut checks = kernel::run(&host);
    checks.push(symbol_helper());
    let class =
        if kernel::missing_privileges(&host).is_some() { Class::Privilege } else { Class::Feature };
    checks.push(private_stacks(class));
    checks.push(address_space_locks());
    let (check, programs) = self_test(host, class);
    checks.push(check);
    let mut out = output::stdout()?;
    match args.format {
        PlainFormat::Text => {
            kernel::render_text(&checks, &mut out)?;
            if args.programs {
                kernel::render_programs(&programs, &mut out)?;
            }
        }
        PlainFormat::Json => kernel::render_json(&checks, &programs, &mut out)?,
    }
    Ok(kernel::verdict(&checks).exit_code())
}

/// Starts a symbol helper: how far it is confined here.
fn symbol_helper() -> Check {
    let check = Check::new(kernel::SYMBOL_HELPER, Class::Privilege);
    let names = "functions come from symbol tables alone, without files and lines";
    match Helper::new(SymbolOptions::default().program).confinement() {
        Ok(seen) => {
            let flag = |name: &str, there| format!("{} {name}", if there { "has" } else { "lacks" });
            let found = format!(
                "user {}, capabilities {:x}, {}, {}",
                seen.user,
                seen.capabilities,
                flag("no_new_privs", seen.no_new_privileges),
                flag("a filter of system calls", seen.filtered),
            );
            let confined = seen.capabilities == 0 && seen.no_new_privileges && seen.filtered;
            if confined && seen.missing.is_empty() {
                return check.ok(found);
            }
            let means = seen.missing.join("; ");
            check.warn(found, means, "give drainprof the capabilities that docs/daemon.md names")
        }
        Err(HelperError::Refused { why }) => check.warn(
            why,
            names,
            "allow it in the container's or unit's filter of system calls, or use a kernel with seccomp",
        ),
        Err(error) => check.warn(error.to_string(), names, "report it with this line"),
    }
}

/// Asks whether two threads could use one stack in a program: then nothing is attached.
fn private_stacks(class: Class) -> Check {
    let check = Check::new(kernel::PRIVATE_STACKS, class).required();
    match bpf::PrivateStacks::of_kernel() {
        Ok(bpf::PrivateStacks::Absent) => check.ok("none in this kernel for such programs"),
        Ok(bpf::PrivateStacks::Avoided { shown: true }) => {
            check.ok("avoided, which each program's machine code shows")
        }
        Ok(bpf::PrivateStacks::Avoided { shown: false }) => {
            check.ok("avoided, which each program's instructions show")
        }
        Ok(bpf::PrivateStacks::Forced) => check.fail(
            "this kernel gives them to every program",
            "a thread that is preempted in a program could crash the kernel; nothing is attached",
            "use another kernel, or a newer drainprof, and report it with this line",
        ),
        Err(error) => check.fail(
            format!("not known: {:#}", anyhow::Error::from(error)),
            "nothing is attached while it is not known that the kernel cannot crash",
            "fix what the other checks name; if they are all fine, report it with this line",
        ),
    }
}

/// Whether processes that would hold up the kernel are found before a probe is placed.
fn address_space_locks() -> Check {
    let check = Check::new(kernel::ADDRESS_SPACE_LOCKS, Class::Feature);
    if bpf::can_check() {
        return check.ok("looked at before probes are placed");
    }
    check.warn(
        "cannot be looked at",
        "a process can keep the kernel from placing probes, and all others from forking meanwhile",
        "use a kernel with CONFIG_DEBUG_INFO_BTF; fix what the other checks name",
    )
}

/// Loads every program with small maps: what really works here, and what the kernel says about each.
fn self_test(host: LiveHost, class: Class) -> (Check, Vec<ProgramStatistics>) {
    let check = Check::new(kernel::SELF_TEST, class).required();
    let result = options::offsets(&host).and_then(|offsets| Ok(bpf::self_test(offsets)?));
    match result {
        Ok(programs) => {
            let check = check.ok(format!("the kernel takes all {} eBPF programs", programs.len()));
            (check, programs)
        }
        Err(error) => {
            let check = check.fail(
                format!("{error:#}"),
                "the kernel side cannot be loaded; nothing can be attached",
                "fix what the other checks name; if they are all fine, report it with this line",
            );
            (check, Vec::new())
        }
    }
}
