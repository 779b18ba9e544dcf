//! Independent judges: the reference checkers, debugfs, and the kernel mounting the same image.
//!
//! A missing judge is reported and skipped, never silently passed: [`missing`] prints a line. Setting
//! `MOAFS_NEED_JUDGES` turns a missing judge into a failure.

pub mod dump_f2fs;
pub mod e2fsck;
pub mod fsck_f2fs;
pub mod kernel;
pub mod tools;

/// Prints that a judge is missing; fails if judges are demanded.
///
/// # Panics
/// If `MOAFS_NEED_JUDGES` is set.
pub fn missing(judge: &str, why: &str) {
    assert!(std::env::var_os("MOAFS_NEED_JUDGES").is_none(), "{judge} is needed, but {why}");
    eprintln!("*** SKIPPED: {judge}: {why}");
}

/// The severity of a checker's report on a volume of moafs after a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Nothing is reported.
    Clean,
    /// Space is lost until it is freed by recovery or repair.
    Leak,
    /// The format cannot avoid it, and nothing is lost.
    Benign,
    /// The state is wrong.
    Fatal,
}

/// The result of a reference checker, independent of the tool.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The class of the worst finding.
    pub class: Class,
    /// True if nothing at all is reported.
    pub spotless: bool,
    /// The tool's output.
    pub text: String,
}
