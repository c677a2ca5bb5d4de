//! The driver of an observation: it ends with its time, its processes or a signal, and observes less where the probes
//! cost too much.

use std::io;

use super::{
    Engine,
    command::Command,
    signals::Signals,
    terms::{End, Saving, Sink, Step},
};

impl Engine {
    /// Observes the processes that were added, until the end.
    ///
    /// # Errors
    /// If the kernel side cannot be read, or the sink fails.
    pub async fn run(&mut self, sink: &mut impl Sink, signals: &mut Signals) -> io::Result<End> {
        loop {
            let step = tokio::select! {
                step = self.next(sink) => step?,
                _ = signals.next() => return Ok(End::Signal),
            };
            if let Some(end) = self.on_step(step, None, sink)? {
                return Ok(end);
            }
            if self.running().is_empty() {
                return Ok(End::Ended);
            }
        }
    }

    /// Observes a command, until it and what is observed of it have ended. It gets the signals.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub async fn run_command(
        &mut self,
        command: &mut Command,
        sink: &mut impl Sink,
        signals: &mut Signals,
    ) -> io::Result<End> {
        loop {
            let step = tokio::select! {
                step = self.next(sink), if command.is_attached() => Some(step?),
                event = command.next() => {
                    command.on_event(event, self);
                    None
                }
                came = signals.next() => {
                    command.forward(came);
                    None
                }
            };
            let status = match step {
                // Its status comes from the tracer, which waits for it as its parent.
                Some(Step::Ended(pid)) if pid == command.pid() => command.wait().await,
                _ => None,
            };
            if let Some(step) = step
                && let Some(end) = self.on_step(step, status, sink)?
            {
                return Ok(end);
            }
            let is_running = command.is_attached() && !self.running().is_empty();
            if command.has_ended() && !is_running {
                return Ok(End::Ended);
            }
        }
    }

    fn on_step(
        &mut self,
        step: Step,
        status: Option<Result<i32, i32>>,
        sink: &mut impl Sink,
    ) -> io::Result<Option<End>> {
        match step {
            Step::Ended(pid) => self.ended(pid, status),
            Step::TimeUp => return Ok(Some(End::TimeUp)),
            Step::OverBudget(share) => {
                let saving = self.spend_less(sink, share)?;
                sink.step(&Step::Saved { share, saving })?;
                return Ok((saving == Saving::Nothing).then_some(End::OverBudget));
            }
            Step::Began { again: true, .. } => {
                sink.step(&step)?;
                self.add_families(sink)?;
            }
            step => sink.step(&step)?,
        }
        Ok(None)
    }
}
