//! Formats as kernels print them, and texts that no kernel prints.

use proptest::prelude::*;

use crate::kernel::{Field, Format, FormatError, NEEDED_TRACEPOINTS};

type Event = (&'static str, &'static str, &'static str);

/// As all supported kernels lay it out (the number is made up).
const SYS_ENTER_EXIT: Event = (
    "syscalls",
    "sys_enter_exit",
    r#"name: sys_enter_exit
ID: 218
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:int __syscall_nr;	offset:8;	size:4;	signed:1;
	field:int error_code;	offset:16;	size:8;	signed:0;

print fmt: "error_code: 0x%08lx", ((unsigned long)(REC->error_code))
"#,
);

/// As 5.15 and 6.1 lay it out (the numbers are made up): `char` is signed.
const V5_15: [Event; 4] = [
    (
        "task",
        "task_newtask",
        r#"name: task_newtask
ID: 110
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:pid_t pid;	offset:8;	size:4;	signed:1;
	field:char comm[16];	offset:12;	size:16;	signed:1;
	field:unsigned long clone_flags;	offset:32;	size:8;	signed:0;
	field:short oom_score_adj;	offset:40;	size:2;	signed:1;

print fmt: "pid=%d comm=%s clone_flags=%lx oom_score_adj=%hd", REC->pid, REC->comm, REC->clone_flags, REC->oom_score_adj
"#,
    ),
    (
        "sched",
        "sched_process_exec",
        r#"name: sched_process_exec
ID: 311
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:__data_loc char[] filename;	offset:8;	size:4;	signed:1;
	field:pid_t pid;	offset:12;	size:4;	signed:1;
	field:pid_t old_pid;	offset:16;	size:4;	signed:1;

print fmt: "filename=%s pid=%d old_pid=%d", __get_str(filename), REC->pid, REC->old_pid
"#,
    ),
    (
        "sched",
        "sched_process_exit",
        r#"name: sched_process_exit
ID: 315
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:char comm[16];	offset:8;	size:16;	signed:1;
	field:pid_t pid;	offset:24;	size:4;	signed:1;
	field:int prio;	offset:28;	size:4;	signed:1;

print fmt: "comm=%s pid=%d prio=%d", REC->comm, REC->pid, REC->prio
"#,
    ),
    SYS_ENTER_EXIT,
];

/// As 6.12 lays it out (the numbers are made up): `char` is unsigned since 6.2.
pub(super) const V6_12: [Event; 4] = [
    (
        "task",
        "task_newtask",
        r#"name: task_newtask
ID: 140
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:pid_t pid;	offset:8;	size:4;	signed:1;
	field:char comm[16];	offset:12;	size:16;	signed:0;
	field:unsigned long clone_flags;	offset:32;	size:8;	signed:0;
	field:short oom_score_adj;	offset:40;	size:2;	signed:1;

print fmt: "pid=%d comm=%s clone_flags=%lx oom_score_adj=%hd", REC->pid, REC->comm, REC->clone_flags, REC->oom_score_adj
"#,
    ),
    (
        "sched",
        "sched_process_exec",
        r#"name: sched_process_exec
ID: 318
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:__data_loc char[] filename;	offset:8;	size:4;	signed:0;
	field:pid_t pid;	offset:12;	size:4;	signed:1;
	field:pid_t old_pid;	offset:16;	size:4;	signed:1;

print fmt: "filename=%s pid=%d old_pid=%d", __get_str(filename), REC->pid, REC->old_pid
"#,
    ),
    (
        "sched",
        "sched_process_exit",
        r#"name: sched_process_exit
ID: 322
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:char comm[16];	offset:8;	size:16;	signed:0;
	field:pid_t pid;	offset:24;	size:4;	signed:1;
	field:int prio;	offset:28;	size:4;	signed:1;

print fmt: "comm=%s pid=%d prio=%d", REC->comm, REC->pid, REC->prio
"#,
    ),
    SYS_ENTER_EXIT,
];

/// Copied from a running 6.18: `group_dead`, and `clone_flags` as a `u64`.
const V6_18: [Event; 4] = [
    (
        "task",
        "task_newtask",
        r#"name: task_newtask
ID: 205
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:pid_t pid;	offset:8;	size:4;	signed:1;
	field:char comm[16];	offset:12;	size:16;	signed:0;
	field:u64 clone_flags;	offset:32;	size:8;	signed:0;
	field:short oom_score_adj;	offset:40;	size:2;	signed:1;

print fmt: "pid=%d comm=%s clone_flags=%llx oom_score_adj=%hd", REC->pid, REC->comm, REC->clone_flags, REC->oom_score_adj
"#,
    ),
    (
        "sched",
        "sched_process_exec",
        r#"name: sched_process_exec
ID: 365
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:__data_loc char[] filename;	offset:8;	size:4;	signed:0;
	field:pid_t pid;	offset:12;	size:4;	signed:1;
	field:pid_t old_pid;	offset:16;	size:4;	signed:1;

print fmt: "filename=%s pid=%d old_pid=%d", __get_str(filename), REC->pid, REC->old_pid
"#,
    ),
    (
        "sched",
        "sched_process_exit",
        r#"name: sched_process_exit
ID: 369
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:char comm[16];	offset:8;	size:16;	signed:0;
	field:pid_t pid;	offset:24;	size:4;	signed:1;
	field:int prio;	offset:28;	size:4;	signed:1;
	field:bool group_dead;	offset:32;	size:1;	signed:0;

print fmt: "comm=%s pid=%d prio=%d group_dead=%s", REC->comm, REC->pid, REC->prio, REC->group_dead ? "true" : "false"
"#,
    ),
    SYS_ENTER_EXIT,
];

/// A real-time kernel has one more common field, which moves all others.
const REAL_TIME: &str = r#"name: task_newtask
ID: 120
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;
	field:unsigned char common_preempt_lazy_count;	offset:8;	size:1;	signed:0;

	field:pid_t pid;	offset:12;	size:4;	signed:1;
	field:char comm[16];	offset:16;	size:16;	signed:1;
	field:unsigned long clone_flags;	offset:32;	size:8;	signed:0;
	field:short oom_score_adj;	offset:40;	size:2;	signed:1;

print fmt: "pid=%d comm=%s clone_flags=%lx oom_score_adj=%hd", REC->pid, REC->comm, REC->clone_flags, REC->oom_score_adj
"#;

/// The least that is a format.
pub(super) const ANY: &str =
    "name: any\nID: 7\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n";

fn parsed(events: &[Event; 4], event: &str) -> Format {
    let (_, _, text) = events.iter().find(|(_, name, _)| *name == event).unwrap();
    let format = Format::parse(text).unwrap();
    assert_eq!(format.name, event);
    format
}

fn at(format: &Format, name: &str) -> Option<(u32, u32, bool)> {
    format.field(name).map(|field| (field.offset, field.size, field.signed))
}

/// The fields that the kernel side reads are found in the formats of all kernels that we support, and
/// what differs between them is seen to differ.
#[test]
fn formats_of_supported_kernels() {
    for events in [&V5_15, &V6_12, &V6_18] {
        for (category, event, fields) in NEEDED_TRACEPOINTS {
            assert!(events.iter().any(|known| (known.0, known.1) == (category, event)));
            let format = parsed(events, event);
            assert!(fields.iter().all(|field| format.field(field).is_some()), "{event}");
        }
        let new = parsed(events, "task_newtask");
        assert_eq!(at(&new, "pid"), Some((8, 4, true)));
        assert_eq!(at(&new, "clone_flags"), Some((32, 8, false)));
        assert_eq!(at(&parsed(events, "sched_process_exec"), "old_pid"), Some((16, 4, true)));
        assert_eq!(at(&parsed(events, "sched_process_exit"), "pid"), Some((24, 4, true)));
    }
    assert_eq!(at(&parsed(&V5_15, "task_newtask"), "comm"), Some((12, 16, true)));
    assert_eq!(at(&parsed(&V6_12, "task_newtask"), "comm"), Some((12, 16, false)));
    assert_eq!(at(&parsed(&V6_12, "sched_process_exit"), "group_dead"), None);
    assert_eq!(at(&parsed(&V6_18, "sched_process_exit"), "group_dead"), Some((32, 1, false)));
    assert_eq!(
        parsed(&V6_12, "task_newtask").field("clone_flags").unwrap().type_name,
        "unsigned long"
    );
    assert_eq!(parsed(&V6_18, "task_newtask").field("clone_flags").unwrap().type_name, "u64");
    assert_eq!(parsed(&V6_18, "task_newtask").id, 205);
}

/// Offsets come from the text, so a kernel with one more common field is read rightly.
#[test]
fn moved_fields_are_found_where_they_are() {
    let format = Format::parse(REAL_TIME).unwrap();
    assert_eq!(at(&format, "pid"), Some((12, 4, true)));
    assert_eq!(at(&format, "clone_flags"), Some((32, 8, false)));
}

fn field(declaration: &str) -> Result<Field, FormatError> {
    let text = format!("name: e\nID: 1\n\tfield:{declaration};\toffset:8;\tsize:4;\tsigned:0;\n");
    Format::parse(&text).map(|format| format.fields[0].clone())
}

/// Declarations of every shape that kernels print are taken apart into type, name and length.
#[test]
fn declarations_are_taken_apart() {
    let apart = |text: &str| {
        let field = field(text).unwrap();
        (field.type_name, field.name, field.elements)
    };
    let of = |t: &str, n: &str, e| (t.to_owned(), n.to_owned(), e);
    assert_eq!(apart("int prio"), of("int", "prio", None));
    assert_eq!(apart("char comm[16]"), of("char", "comm", Some(16)));
    assert_eq!(apart("char comm[TASK_COMM_LEN]"), of("char", "comm", None));
    assert_eq!(apart("__data_loc char[] filename"), of("__data_loc char[]", "filename", None));
    assert_eq!(apart("const char * name"), of("const char *", "name", None));
    assert_eq!(apart("void *call_site"), of("void *", "call_site", None));
    assert_eq!(apart("struct list_head *x"), of("struct list_head *", "x", None));
    for odd in ["", "int", "int ", "int a-", "int 🦀", "[4]", "char[] "] {
        assert!(field(odd).is_err(), "{odd:?}");
    }
}

/// A text that is damaged or made up is refused with the line that is wrong.
#[test]
fn hostile_formats_are_refused() {
    let line = |text: &str| match Format::parse(text) {
        Err(FormatError::Line { line, .. }) => line,
        other => panic!("{text:?} gave {other:?}"),
    };
    assert_eq!(line("name: ../../etc\n"), 1);
    assert_eq!(line("name: e\nID: -1\n"), 2);
    assert_eq!(line("name: e\nID: 99999999999\n"), 2);
    for odd in [
        "field:int a;",
        "field:int a;\toffset:0;",
        "field:int a;\toffset:-4;\tsize:4;",
        "field:int a;\toffset:0;\tsize:65537;",
        "field:int a;\toffset:65536;\tsize:1;",
        "field:int a;\toffset:0;\tsize:4;\tsigned:2;",
        "field:;\toffset:0;\tsize:4;",
    ] {
        assert_eq!(line(&format!("name: e\nID: 1\n{odd}\n")), 3, "{odd}");
    }
    let twice = "\tfield:int a;\toffset:0;\tsize:4;\tsigned:1;\n".repeat(2);
    assert_eq!(line(&format!("name: e\nID: 1\n{twice}")), 4);
    let many: Vec<String> =
        (0..300).map(|n| format!("field:int f{n};\toffset:0;\tsize:4;")).collect();
    assert_eq!(line(&many.join("\n")), 257);
    assert_eq!(Format::parse(""), Err(FormatError::Lacks("field:")));
    assert_eq!(Format::parse(&ANY.replace("ID: 7\n", "")), Err(FormatError::Lacks("ID:")));
    assert_eq!(Format::parse(&ANY.replace("name: any\n", "")), Err(FormatError::Lacks("name:")));
    assert_eq!(Format::parse(&" ".repeat(70_000)), Err(FormatError::TooLong));
}

proptest! {
    /// No damage to a real format makes the parser panic or accept a field outside of its record.
    #[test]
    fn damaged_formats_stay_within_bounds(at in 0_usize..600, junk in "\\PC{0,6}") {
        let mut text: Vec<char> = V6_18[0].2.chars().collect();
        let at = at.min(text.len());
        text.splice(at..(at + 3).min(text.len()), junk.chars());
        if let Ok(format) = Format::parse(&text.into_iter().collect::<String>()) {
            for field in format.fields {
                prop_assert!(field.offset + field.size <= 64 * 1024);
                prop_assert!(!field.name.is_empty());
            }
        }
    }
}
