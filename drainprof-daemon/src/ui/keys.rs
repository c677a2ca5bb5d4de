//! Keys, as the app knows them: what a terminal library calls them stays in `shell`.

/// One key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// A letter together with Ctrl.
    Ctrl(char),
    /// Enter.
    Enter,
    /// Escape.
    Esc,
    /// Backspace.
    Backspace,
    /// Tab.
    Tab,
    /// Arrow up.
    Up,
    /// Arrow down.
    Down,
    /// Arrow left.
    Left,
    /// Arrow right.
    Right,
    /// One page up.
    PageUp,
    /// One page down.
    PageDown,
    /// To the beginning.
    Home,
    /// To the end.
    End,
}

/// What the keys do, for the page of help: keys, and what they do.
pub(super) const HELP: &[(&str, &str)] = &[
    ("", "List of processes and their allocators"),
    ("↑ ↓ k j", "select a row; PgUp PgDn Home End by pages, to the ends"),
    ("Enter", "open the selected row: sites, ages, alerts, windows"),
    ("< > ← →", "sort by the column before, after; with --at by < > alone"),
    ("r", "reverse the order"),
    ("u", "sort by urgency: alerts, pinned bytes/s, growth of RSS (at first)"),
    ("p n a d c b", "sort by pid, process, allocator, DSR, closes/s, bytes retained"),
    ("f m g l x", "sort by forecast, RSS, growth of RSS, level, cost"),
    ("/", "filter by text in process, exe, labels, profile; Esc: all"),
    ("w", "start a diagnostic window on the selected process"),
    ("t", "the selected process's report, as text"),
    ("← → [ ]", "with --at: the state before, the next; ten minutes back, ahead"),
    ("Tab W", "the list of windows; Enter on one that is over: its report"),
    ("", "Everywhere; so do the keys above, and lead to the list"),
    ("Esc q", "back; in the list of processes q leaves"),
    ("? h", "this page, and back"),
    ("Ctrl-Z", "stop, and come back with fg"),
    ("Ctrl-C", "leave at once"),
    ("", "What is shown"),
    ("DSR", "share of closes that left no live object, since observed"),
    ("close/s", "closes per second, between the last two states"),
    ("retain", "bytes of granules that are closed and pinned now"),
    ("+/day", "bytes that retention grows by in a day, at the present rate"),
    ("rss, rss/s", "resident memory, and its growth per second over the last minutes"),
    ("lvl", "cls close, bnd boundary, obj objects, stk stacks, off: no probe"),
    ("cost", "CPU time of the process that its probes take, of one CPU"),
    ("–", "not known, or not measured at this level; never 0"),
    ("! ?", "before a row: a rule has fired, is about to"),
];
