//! Finding tracefs and asking it.

use nix::libc;

use super::{FakeHost, event_path};
use crate::kernel::{LiveHost, Tracefs, TracefsError};

const MARK: &str = "/sys/kernel/tracing/events/header_page";
const OLD_MARK: &str = "/sys/kernel/debug/tracing/events/header_page";

/// It is found at its own place, else inside of debugfs, else reported as missing or as closed to us.
#[test]
fn found_where_it_is() {
    let host = FakeHost::healthy();
    assert_eq!(Tracefs::find(&host).unwrap().root().to_str(), Some("/sys/kernel/tracing"));
    let old = host.clone().without(MARK).file(OLD_MARK, "x");
    assert_eq!(Tracefs::find(&old).unwrap().root().to_str(), Some("/sys/kernel/debug/tracing"));
    let none = host.clone().without(MARK);
    assert!(matches!(Tracefs::find(&none), Err(TracefsError::NotMounted)));
    let told = TracefsError::NotMounted.to_string();
    assert!(told.contains("mount -t tracefs nodev /sys/kernel/tracing"), "{told}");
    let closed = host.error(MARK, libc::EACCES);
    assert!(matches!(Tracefs::find(&closed), Err(TracefsError::Denied)));
}

/// An event is described, missing, unreadable or not understood, and each is distinguished by name.
#[test]
fn events_are_described() {
    let path = event_path("sched", "sched_process_exit");
    let host = FakeHost::healthy();
    let tracefs = Tracefs::find(&host).unwrap();
    let ask = |host: &FakeHost| tracefs.format(host, "sched", "sched_process_exit");
    assert_eq!(ask(&host).unwrap().field("pid").unwrap().offset, 24);
    let gone = ask(&host.clone().without(&path)).unwrap_err();
    assert_eq!(gone.to_string(), "this kernel has no tracepoint sched:sched_process_exit");
    let closed = ask(&host.clone().error(&path, libc::EACCES));
    assert!(matches!(closed, Err(TracefsError::Read { .. })));
    let odd = ask(&host.clone().file(&path, "nonsense"));
    assert!(matches!(odd, Err(TracefsError::Format { .. })));
}

/// A name that is a path leads nowhere.
#[test]
fn names_are_no_paths() {
    let host = FakeHost::healthy();
    let tracefs = Tracefs::find(&host).unwrap();
    for bad in ["..", "../../../etc", "a/b", "", "a b", "a\0b"] {
        assert!(matches!(tracefs.format(&host, bad, "x"), Err(TracefsError::Name(_))), "{bad:?}");
        assert!(matches!(tracefs.format(&host, "sched", bad), Err(TracefsError::Name(_))));
    }
}

/// The formats of the kernel that runs this test are understood, where they can be read.
#[test]
fn this_kernel_is_understood() {
    let tracefs = match Tracefs::find(&LiveHost) {
        Ok(tracefs) => tracefs,
        Err(why) => {
            eprintln!("skipped: {why}");
            return;
        }
    };
    for (category, event, fields) in crate::kernel::NEEDED_TRACEPOINTS {
        let format = tracefs.format(&LiveHost, category, event).unwrap();
        assert!(fields.iter().all(|field| format.field(field).is_some()), "{format:?}");
    }
}
