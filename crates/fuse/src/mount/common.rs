//! The parts that mounting as root and by `fusermount3` have in common.

use crate::options::MountOptions;

pub(super) fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Returns the options that both ways of mounting give to the kernel.
pub(super) fn options(options: &MountOptions) -> Vec<String> {
    let mut list = Vec::new();
    if options.allow_other {
        list.push("allow_other".to_owned());
    }
    if options.default_permissions {
        list.push("default_permissions".to_owned());
    }
    if let Some(max_read) = options.max_read {
        list.push(format!("max_read={max_read}"));
    }
    list.extend(options.extra.iter().cloned());
    list
}
