//! Threads that do something again and again.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A thread that calls a function repeatedly until this value is dropped.
#[derive(Debug)]
pub(crate) struct Ticking {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Ticking {
    /// Starts a thread that calls `tick`, which returns the pause until the next call: [`Duration::MAX`] for no other.
    pub(crate) fn start(name: &str, mut tick: impl FnMut() -> Duration + Send + 'static) -> std::io::Result<Ticking> {
        let (stop, stopped) = channel();
        let body = move || {
            let mut pause = Duration::ZERO;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                pause = tick();
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body)?;
        Ok(Ticking { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Ticking {
    fn drop(&mut self) {
        // Closing this end wakes the thread.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticking_thread_ends_when_it_is_dropped() {
        let (told, heard) = channel();
        let ticking = Ticking::start("test", move || {
            let _ = told.send(());
            Duration::MAX
        });
        heard.recv().unwrap();
        drop(ticking.unwrap());
        assert!(heard.recv().is_err());
    }
}
