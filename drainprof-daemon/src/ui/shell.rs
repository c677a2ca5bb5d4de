//! The terminal around the app: raw mode and alternate screen, keys, signals, and that the terminal is left as it was found.

use std::{
    io::{self, Stdout, Write as _, stdin, stdout},
    os::fd::AsFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nix::{
    errno::Errno,
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, raise},
};
use ratatui::{
    Terminal,
    backend::CrosstermBackend,
    crossterm::{
        cursor::Show,
        event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
        execute,
        terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
    },
};

use super::{
    app::{Action, App},
    keys::Key,
    source::Source,
};

/// How often the source is asked whether it has something new, if nothing else wakes us.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Signals that were received and not yet dealt with.
struct Signals {
    end: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    resumed: Arc<AtomicBool>,
}

impl Signals {
    fn catch() -> io::Result<Self> {
        let flag = |signals: &[libc::c_int]| -> io::Result<Arc<AtomicBool>> {
            let flag = Arc::new(AtomicBool::new(false));
            for signal in signals {
                let raised = Arc::clone(&flag);
                // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
                unsafe {
                    signal_hook_registry::register(*signal, move || {
                        raised.store(true, Ordering::SeqCst);
                    })?;
                }
            }
            Ok(flag)
        };
        Ok(Self {
            end: flag(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT])?,
            stop: flag(&[libc::SIGTSTP])?,
            resumed: flag(&[libc::SIGCONT])?,
        })
    }
}

/// The terminal while it is ours. Dropping it gives it back.
struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    fn enter() -> io::Result<Self> {
        take()?;
        match Terminal::new(CrosstermBackend::new(stdout())) {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                give_back();
                Err(error)
            }
        }
    }

    /// Gives the terminal back, stops this process until it is continued, and takes the terminal again.
    fn suspend(&mut self) -> io::Result<()> {
        give_back();
        // Unlike SIGTSTP it needs no handler of ours to be taken out of the way; shells see no difference.
        raise(Signal::SIGSTOP)?;
        self.resume()
    }

    /// Takes the terminal again after another program has had it.
    fn resume(&mut self) -> io::Result<()> {
        // What the mode was is remembered again: the shell may have changed it.
        disable_raw_mode()?;
        take()?;
        // `clear` would ask the terminal for the cursor's position, and fail where the answer takes long.
        let size = self.terminal.size()?;
        self.terminal.resize(size.into())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn take() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen).inspect_err(|_| give_back())
}

/// As it was. A terminal that is gone needs nothing.
fn give_back() {
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = stdout().flush();
}

/// Gives the terminal back before a panic's message is written, which would be lost on the other screen.
fn give_back_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        give_back();
        before(panic);
    }));
}

/// Shows the app on this process's terminal until the user leaves, or a signal ends it.
pub fn run(app: &mut App, source: &mut dyn Source) -> io::Result<()> {
    let signals = Signals::catch()?;
    give_back_on_panic();
    let mut screen = Screen::enter()?;
    loop {
        let size = screen.terminal.size()?;
        app.resized(size.width, size.height);
        screen.terminal.draw(|frame| app.draw(frame))?;
        wait(source)?;
        if signals.end.load(Ordering::SeqCst) {
            return Ok(());
        }
        if signals.stop.swap(false, Ordering::SeqCst) {
            screen.suspend()?;
        }
        if signals.resumed.swap(false, Ordering::SeqCst) {
            screen.resume()?;
        }
        while event::poll(Duration::ZERO)? {
            let Some(key) = key(&event::read()?) else { continue };
            match app.key(key) {
                Some(Action::Quit) => return Ok(()),
                Some(Action::Suspend) => screen.suspend()?,
                Some(Action::Ask(request)) => {
                    // It may take a moment; that it was asked shows meanwhile.
                    screen.terminal.draw(|frame| app.draw(frame))?;
                    match source.ask(&request) {
                        Ok(answer) => app.answered(answer),
                        Err(error) => app.say(&error.in_full(), true),
                    }
                }
                Some(Action::Step(step)) => match source.step(step) {
                    Ok(Some(seen)) => app.rewound(seen),
                    Ok(None) => {}
                    Err(error) => app.say(&error.in_full(), true),
                },
                None => {}
            }
        }
        match source.poll() {
            Ok(Some(state)) => app.take(state),
            Ok(None) => {}
            Err(error) => app.failure(&error.in_full()),
        }
        if let Some(reported) = source.reported() {
            app.say(&reported, false);
        }
    }
}

/// Until a key, something of the source's, a signal, or some time has come.
fn wait(source: &dyn Source) -> io::Result<()> {
    let stdin = stdin();
    let mut waited = vec![PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    let others = source.descriptors();
    waited.extend(others.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)));
    let timeout = PollTimeout::try_from(POLL_INTERVAL).unwrap_or(PollTimeout::ZERO);
    match poll(&mut waited, timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    match waited.first().and_then(PollFd::revents) {
        Some(events) if events.intersects(gone) => {
            Err(io::Error::new(io::ErrorKind::BrokenPipe, "the terminal is gone"))
        }
        _ => Ok(()),
    }
}

/// What the app makes of an event of the terminal; a new size is examined before each picture.
fn key(event: &Event) -> Option<Key> {
    let Event::Key(KeyEvent { code, modifiers, kind, .. }) = event else { return None };
    if *kind == KeyEventKind::Release {
        return None;
    }
    Some(match code {
        KeyCode::Char(c) if modifiers.contains(KeyModifiers::CONTROL) => {
            Key::Ctrl(c.to_ascii_lowercase())
        }
        KeyCode::Char(c) => Key::Char(*c),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Esc,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Tab => Key::Tab,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        _ => return None,
    })
}
