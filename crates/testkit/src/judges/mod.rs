//! Judges that nobody here wrote: e2fsck, debugfs, and the kernel mounting the same image.
//!
//! A missing judge is said loudly and skipped, never silently passed: [`missing`] prints what is not
//! judged. Setting `MOAFS_NEED_JUDGES` turns a missing judge into a failure.

pub mod e2fsck;
pub mod kernel;
pub mod tools;

/// Says loudly that a judge is missing; fails where judges are demanded.
///
/// # Panics
/// If `MOAFS_NEED_JUDGES` is set.
pub fn missing(judge: &str, why: &str) {
    assert!(std::env::var_os("MOAFS_NEED_JUDGES").is_none(), "{judge} is needed, but {why}");
    eprintln!("*** SKIPPED: {judge}: {why}");
}
