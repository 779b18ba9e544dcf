//! Limits on what the daemon's process may use, which it has from the shell or the service that started it.

use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};

/// Lifts the limits that would end a volume's daemon in the middle of its work, or keep it from opening files: on the
/// size of files, on processor time, and on open files, each as far as this process may. They are meant for programs,
/// while a volume is as large as it is, and is served for as long as it is mounted.
pub fn lift() {
    let forever = geteuid().is_root();
    for resource in [Resource::Fsize, Resource::Cpu, Resource::Nofile] {
        let Rlimit { maximum, .. } = getrlimit(resource);
        let maximum = if forever && resource != Resource::Nofile { None } else { maximum };
        // Without the right to lift it, it stays.
        let _ = setrlimit(resource, Rlimit { current: maximum, maximum });
    }
    // A write beyond a limit that stays is an error then.
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
