//! Shows in the mount table that a volume has turned read-only.
//!
//! The reason is found by whichever call met it, often in a serving thread. Changing the mount table takes locks of
//! the kernel for which a serving thread must not wait, so a thread of its own looks for it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use moafs_fuse::MountHandle;
use moafs_vfs::{Format, Vfs};

use crate::log::Log;
use crate::swap::KernelSwap;
use crate::ticking::Ticking;

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// The pause when nothing is left to be done.
const DONE: Duration = Duration::MAX;

/// Starts the thread that logs why the volume has failed, and makes the mount read-only.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn watch<F: Format>(
    vfs: &Vfs<F>,
    swap: &Arc<KernelSwap<F>>,
    mount: MountHandle,
    log: &Arc<Log>,
) -> io::Result<Ticking> {
    let (vfs, swap, log) = (vfs.clone(), Arc::clone(swap), Arc::clone(log));
    let mut told = false;
    Ticking::start("failure", move || {
        let Some(reason) = vfs.failed() else { return LOOK };
        if !told {
            log.failure(&format!("the volume has turned read-only: {reason}"));
            vfs.record_damage();
            told = true;
        }
        // The command that ends the swap is a write to this mount.
        if swap.is_on() {
            return LOOK;
        }
        match mount.show_read_only() {
            // Files are open for writing. Their writes fail, and they are closed at some time.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return LOOK,
            Err(error) => log.say(&format!("the mount table still shows `rw`: {error}")),
            Ok(()) => {}
        }
        DONE
    })
}
