//! The app with states of the past.

use drainprof_node::{
    NodeState,
    store::{Moment, Readings},
};

use super::{picture, press, running};
use crate::ui::{
    app::{Action, App, Look},
    keys::Key,
    past::state_of,
    samples::{later, state},
    source::{Seen, Step},
};

/// Of the past: its time stands above it, arrows lead through it, and rates are those up to it, forth and back.
#[test]
fn the_past() {
    let past =
        |state: &NodeState| state_of(&Moment::of(state), &Readings::new(), state.windows.clone());
    let mut app = App::new(Look { source: "history".to_owned(), past: true, colour: false });
    app.resized(120, 40);
    let (first, second) = (past(&state()), past(&later()));
    app.rewound(Seen { state: second.clone(), before: Some(first.clone()) });
    let shown = picture(&mut app, 120, 40);
    assert!(shown.contains("history  2023-11-1") && shown.contains(" 1000 "), "{shown}");
    for (key, step) in [
        (Key::Left, Step::Back),
        (Key::Right, Step::Forth),
        (Key::Char('['), Step::FarBack),
        (Key::Char(']'), Step::FarForth),
    ] {
        assert_eq!(app.key(key), Some(Action::Step(step)));
    }
    app.rewound(Seen { state: first, before: None });
    assert_ne!(picture(&mut app, 120, 40), shown);
    app.rewound(Seen { state: second.clone(), before: None });
    assert!(!picture(&mut app, 120, 40).contains(" 1000 "), "no rates without a state before");
    press(&mut app, "\n");
    let detail = picture(&mut app, 120, 40);
    for says in ["opened 12000", "the history keeps counts and memory", "open 1\n", "dsr_dropping"]
    {
        assert!(detail.contains(says), "{says}: {detail}");
    }
    let lossy = NodeState { complete: false, ..state() };
    app.rewound(Seen { state: past(&lossy), before: None });
    let shown = picture(&mut app, 120, 40);
    assert!(shown.contains("INCOMPLETE: something that counts need was lost"), "{shown}");
    // In the present the same keys sort.
    assert_eq!(running(120, 40).key(Key::Left), None);
}
