//! Judges that nobody here wrote: the reference checkers, debugfs, and the kernel mounting the same image.
//!
//! A missing judge is said loudly and skipped, never silently passed: [`missing`] prints what is not
//! judged. Setting `MOAFS_NEED_JUDGES` turns a missing judge into a failure.

pub mod dump_f2fs;
pub mod e2fsck;
pub mod fsck_f2fs;
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

/// How bad it is what a checker says of a volume of ours after a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Nothing said.
    Clean,
    /// Space is lost until it is returned.
    Leak,
    /// The format cannot do better, and nothing is lost.
    Benign,
    /// Must not be.
    Fatal,
}

/// What a checker says of an image, whichever checker it is.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The worst that it says.
    pub class: Class,
    /// True if it has nothing to say at all.
    pub spotless: bool,
    /// Its words.
    pub text: String,
}
