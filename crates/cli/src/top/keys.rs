//! [`Keys`]: single keys from the terminal, without Return; and the terminal's size.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The terminal on standard input, which gives keys as they are pressed until this is dropped. Ctrl-C still interrupts.
pub(super) struct Keys {
    before: libc::termios,
}

impl Keys {
    /// Returns `None` if standard input is no terminal.
    pub(super) fn of_terminal() -> Option<Keys> {
        let mut before = MaybeUninit::uninit();
        // SAFETY: the pointer leads to room for the settings, which the call fills in if it succeeds.
        if unsafe { libc::tcgetattr(libc::STDIN_FILENO, before.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: the call above succeeded.
        let before = unsafe { before.assume_init() };
        let mut by_key = before;
        by_key.c_lflag &= !(libc::ICANON | libc::ECHO);
        by_key.c_cc[libc::VMIN] = 1;
        by_key.c_cc[libc::VTIME] = 0;
        set(&by_key);
        Some(Keys { before })
    }

    /// Waits for a key; `None` if there is none in that time, or a signal came.
    pub(super) fn next(&self, time: Duration) -> Option<u8> {
        let stdin = io::stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        let time = Timespec { tv_sec: time.as_secs().try_into().ok()?, tv_nsec: time.subsec_nanos().into() };
        if poll(&mut fds, Some(&time)).ok()? == 0 {
            return None;
        }
        let mut key = [0];
        match rustix::io::read(stdin.as_fd(), &mut key) {
            Ok(1) => Some(key[0]),
            // The terminal is gone: nothing can be shown any more.
            _ => Some(b'q'),
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        set(&self.before);
    }
}

/// Returns the rows of the terminal on standard output; `None` if it does not tell.
pub(super) fn rows() -> Option<u16> {
    let mut size = MaybeUninit::<libc::winsize>::uninit();
    // SAFETY: the pointer leads to room for the size, which the call fills in if it succeeds.
    if unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, size.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call above succeeded.
    let size = unsafe { size.assume_init() };
    Some(size.ws_row).filter(|rows| *rows > 0)
}

fn set(settings: &libc::termios) {
    // SAFETY: the pointer leads to settings that tcgetattr has filled in. A terminal that refuses them stays as it is.
    unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSADRAIN, settings) };
}
