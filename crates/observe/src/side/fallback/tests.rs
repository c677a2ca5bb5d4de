use std::{cell::RefCell, io};

use bytemuck::Zeroable as _;
use drainprof_common::spec::ProbeSpec;
use drainprof_probe::plan::{
    Site,
    cost::InstructionKind,
    site::{Choice, InstructionCost, Needs, Stop},
};
use drainprof_profile::{Phase, Role};

use super::*;

/// A probe three bytes behind the first instruction.
fn planned() -> PlannedProbe {
    let priced = |instruction: &str, kind, cost_ns| {
        Some(InstructionCost { instruction: instruction.into(), kind, cost_ns })
    };
    PlannedProbe {
        spec: ProbeSpec { stack_moved: 8, ..ProbeSpec::zeroed() },
        role: Role::Free,
        phase: Phase::Entry,
        site: Site {
            open_path: "/lib/libpool.so".into(),
            shown_path: "/lib/libpool.so".into(),
            inode: (1, 2),
            file_offset: 0x1003,
            entry_offset: 0x1000,
            symbol: "pool_free".into(),
            usdt: None,
            aliases: Vec::new(),
        },
        choice: Choice {
            offset: 3,
            here: priced("je 0x1010", InstructionKind::Branch, 550.0),
            entry: priced("test rdi, rdi", InstructionKind::Compare, 18_500.0),
            stack_moved: 8,
            ..Choice::blind(Stop::Branch, Needs::default())
        },
    }
}

fn kernel_says(probe: &PlannedProbe, errno: i32) -> BpfError {
    BpfError::Attach {
        symbol: probe.site.symbol.clone(),
        object: probe.site.shown_path.clone(),
        offset: probe.site.file_offset,
        source: Box::new(io::Error::from_raw_os_error(errno)),
    }
}

/// A place that the kernel refuses, in whichever of its words, is left for the first instruction: the spec
/// says so, the cost is that one's, and a finding tells it.
#[test]
fn a_refused_place_is_left() {
    for errno in [nix::libc::EINVAL, nix::libc::EOPNOTSUPP, 524, nix::libc::ENOEXEC] {
        let tried = RefCell::new(Vec::new());
        let attached = attach(&planned(), |probe| {
            tried.borrow_mut().push((probe.site.file_offset, probe.spec.stack_moved));
            if probe.choice.offset > 0 { Err(kernel_says(probe, errno)) } else { Ok(7) }
        });
        let attached = attached.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(tried.into_inner(), [(0x1003, 8), (0x1000, 0)]);
        assert_eq!((attached.spec, attached.probe.site.file_offset), (7, 0x1000));
        assert_eq!(attached.probe.choice.stop, Stop::Refused);
        assert_eq!(attached.probe.choice.here, planned().choice.entry);
        let finding = attached.finding.expect("it is told");
        assert_eq!(finding.code, "place_refused");
        assert_eq!(
            finding.message,
            "the kernel refuses a probe at pool_free+0x3 `je 0x1010` (550 ns) in /lib/libpool.so; it sits on \
             the first instruction instead, +0x0 `test rdi, rdi` (18500 ns)"
        );
    }
}

/// What the kernel takes stays where it was planned, and nothing is reported.
#[test]
fn a_place_that_is_taken_is_kept() {
    let attached = attach(&planned(), |_| Ok(3)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((attached.spec, attached.probe.site.file_offset), (3, 0x1003));
    assert_eq!((attached.probe.spec.stack_moved, attached.finding), (8, None));
}

/// Another error is no reason to try elsewhere; a probe on the first instruction has no other place; and a
/// refusal of both is an error that names the second.
#[test]
fn no_second_try() {
    let count = RefCell::new(0);
    let failing = |probe: &PlannedProbe, errno: i32| {
        *count.borrow_mut() = 0;
        let error = attach(probe, |probe| {
            *count.borrow_mut() += 1;
            Err(kernel_says(probe, errno))
        });
        (error.map(|attached| attached.spec).unwrap_err().to_string(), *count.borrow())
    };
    let (message, tries) = failing(&planned(), nix::libc::EPERM);
    assert!(message.contains("0x1003") && tries == 1, "{message}");
    let at_entry = fall_back(&planned()).expect("it is behind the first");
    assert_eq!(failing(&at_entry, nix::libc::EINVAL).1, 1);
    let (message, tries) = failing(&planned(), nix::libc::EINVAL);
    assert!(message.contains("0x1000") && tries == 2, "{message}");
}
