//! `e2fsck` as a judge: its output as typed findings, and the table of findings that a volume of moafs may have after a
//! power cut.
//!
//! The table, which `docs/consistency.md` shows with exit codes; a row is added only with its reason:
//!
//! | state after a cut | class |
//! |---|---|
//! | bits set for nothing, counts, links too high, deleted inode not freed | leak |
//! | append, truncate: `i_blocks is`, `i_size is … should be` (larger) | benign: inode and indirect block cannot change at once |
//! | create: unattached inode | benign: the inode is written before its name |
//! | mkdir: unconnected directory with its `..` and counts | benign: likewise |
//! | mkdir in a new directory: `..` of the unconnected one names an unused inode | benign: no name leads to either yet |
//! | directory moved: `is a link to directory` (two names) | benign: the new name is written before the old one goes |
//! | directory moved over one beside it: `..` of the replaced one in lost+found | benign: its temporary name goes last, since it tells which of the other's names stays |
//!
//! Everything else fails.

use std::path::Path;

use super::{Class, Verdict, tools};

/// One finding of e2fsck.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// Free or directory counts are off.
    Counts,
    /// Bits set in a bitmap for nothing.
    BitsSetForNothing,
    /// Bits clear in a bitmap although the inode or block is in use.
    BitsMissing(String),
    /// An inode with links 0 that was not freed.
    DeletedInode,
    /// More links counted than there are names.
    LinksTooHigh,
    /// Fewer links counted than there are names.
    LinksTooLow(String),
    /// `i_blocks` is off.
    BlockCount,
    /// The size is too small for the blocks mapped (e2fsck would grow the file).
    SizeTooSmall,
    /// The size is too large for the blocks mapped.
    SizeTooLarge(String),
    /// An inode without a name.
    Unattached,
    /// A directory without a name.
    UnconnectedDirectory,
    /// The `..` line of an unconnected or moved directory.
    DotDot,
    /// The `..` line of a directory that was replaced and has only its temporary name left.
    ReplacedDotDot,
    /// A directory with two names.
    SecondDirectoryName,
    /// Anything else.
    Other(String),
}

impl Finding {
    /// Returns the class of the finding, by the table.
    pub fn class(&self) -> Class {
        match self {
            Finding::Counts | Finding::BitsSetForNothing | Finding::DeletedInode | Finding::LinksTooHigh => Class::Leak,
            Finding::BlockCount
            | Finding::SizeTooSmall
            | Finding::Unattached
            | Finding::UnconnectedDirectory
            | Finding::DotDot
            | Finding::ReplacedDotDot
            | Finding::SecondDirectoryName => Class::Benign,
            Finding::BitsMissing(_) | Finding::LinksTooLow(_) | Finding::SizeTooLarge(_) | Finding::Other(_) => {
                Class::Fatal
            }
        }
    }
}

/// Returns the exit codes that `-p` may end with on a volume with these findings of `-fn`: 1 if all of them are safe to
/// repair, 4 if a question has to be answered. An inode without a name is cleared without asking if it is empty.
pub fn preen_exits(findings: &[Finding]) -> &'static [i32] {
    let asks = |finding: &Finding| {
        use Finding::{DotDot, ReplacedDotDot, SecondDirectoryName, UnconnectedDirectory};
        matches!(finding, UnconnectedDirectory | SecondDirectoryName | DotDot | ReplacedDotDot)
    };
    match () {
        () if findings.iter().any(asks) => &[4],
        () if findings.contains(&Finding::Unattached) => &[1, 4],
        () => &[1],
    }
}

/// The result of a run of e2fsck.
#[derive(Debug, Clone)]
pub struct E2fsckVerdict {
    /// Exit code.
    pub exit: i32,
    /// The findings, line by line.
    pub findings: Vec<Finding>,
    /// All of its output.
    pub text: String,
}

impl E2fsckVerdict {
    /// Returns the class of the worst finding.
    pub fn class(&self) -> Class {
        if self.exit >= 8 {
            return Class::Fatal;
        }
        self.findings.iter().map(Finding::class).max().unwrap_or(Class::Clean)
    }

    /// Returns true if nothing is reported (exit 0, and no line about counts either).
    pub fn spotless(&self) -> bool {
        self.exit == 0 && self.findings.is_empty()
    }

    /// Returns the findings that are not in the table, in words.
    pub fn fatal(&self) -> String {
        let fatal: Vec<String> =
            self.findings.iter().filter(|f| f.class() == Class::Fatal).map(|f| format!("{f:?}")).collect();
        format!("exit {}: {}\n{}", self.exit, fatal.join("; "), self.text)
    }
}

impl From<E2fsckVerdict> for Verdict {
    fn from(verdict: E2fsckVerdict) -> Verdict {
        let class = verdict.class();
        let text = if class == Class::Fatal { verdict.fatal() } else { verdict.text.clone() };
        Verdict { class, spotless: verdict.spotless(), text }
    }
}

/// The way e2fsck is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// `-fn`: looks, never writes.
    Look,
    /// `-fp`: repairs what is safe.
    Preen,
    /// `-fy`: repairs everything.
    Repair,
    /// `-E journal_only`: replays the journal, finishes orphans, and looks at nothing else.
    Replay,
}

/// Returns true if a volume has a journal to replay: without that, `-n` judges what lies on the disk beside it.
///
/// # Panics
/// If the image cannot be read.
pub fn needs_replay(image: &Path) -> bool {
    let mut features = [0; 4];
    let file = std::fs::File::open(image).expect("the image can be opened");
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut features, 1024 + 0x60).expect("the image has a superblock");
    features[0] & 4 != 0
}

/// Runs e2fsck; `None` if it is not installed.
///
/// The tool's clock may lag a tick behind the one that volumes are stamped with; a volume stamped within that tick is
/// "in the future" and is checked again.
pub fn run(image: &Path, mode: Mode) -> Option<E2fsckVerdict> {
    let verdict = run_once(image, mode)?;
    if mode != Mode::Look || !verdict.text.contains("is in the future") {
        return Some(verdict);
    }
    std::thread::sleep(std::time::Duration::from_millis(50));
    run_once(image, mode)
}

/// Replays the journal of a copy of the image, and returns the verdict on what that leaves; `None` if e2fsck is
/// missing.
///
/// # Panics
/// If there is no room for the copy.
pub fn look_behind_replay(image: &Path) -> Option<Verdict> {
    let copy = tempfile::NamedTempFile::new_in(tools::scratch()).expect("a scratch file");
    std::fs::copy(image, copy.path()).expect("the image can be copied");
    let replayed = run(copy.path(), Mode::Replay)?;
    let verdict = run(copy.path(), Mode::Look)?;
    // The totals in the superblock are those of the last unmount: e2fsck corrects them without a word of error.
    let silent = verdict.exit == 0 && verdict.findings.iter().all(|finding| *finding == Finding::Counts);
    let sound = silent && replayed.exit <= 1;
    Some(Verdict {
        class: if sound { Class::Clean } else { Class::Fatal },
        spotless: sound,
        text: format!("replay: {}\n{}", replayed.text, verdict.text),
    })
}

fn run_once(image: &Path, mode: Mode) -> Option<E2fsckVerdict> {
    let flags: &[&str] = match mode {
        Mode::Look => &["-fn"],
        Mode::Preen => &["-fp"],
        Mode::Repair => &["-fy"],
        Mode::Replay => &["-y", "-E", "journal_only"],
    };
    let output = tools::run("e2fsck", &[flags, &[image.to_str().expect("test paths are text")]].concat())?;
    let text = tools::text(&output);
    let findings = parse(&text);
    Some(E2fsckVerdict { exit: output.status.code().unwrap_or(128), findings, text })
}

/// Lines that carry no finding: headings, questions' continuations, summaries.
const NOISE: [&str; 21] = [
    "e2fsck ",
    "Pass ",
    "Clear? no",
    "Connect to /lost+found? no",
    "Fix? no",
    "Fix<y>? no",
    "no",
    "yes",
    "Clear inode? no",
    "Warning!  ",
    "Warning: ",
    "Inodes that were part of a corrupted orphan linked list found.",
    "(There are ",
    "IGNORED.",
    "Peak memory",
    "Padding? no",
    "***** FILE SYSTEM WAS MODIFIED *****",
    "/lost+found not found.  Create? no",
    "Create? no",
    "yes",
    "Block relocation",
];

/// Converts every line of `e2fsck -fn` output to a finding. Unknown lines are [`Finding::Other`].
pub fn parse(text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for line in text.lines().map(str::trim) {
        let noise = line.is_empty() || NOISE.iter().any(|noise| line.starts_with(noise)) || is_summary(line);
        if !noise {
            findings.push(classify(line));
        }
    }
    reconcile(findings)
}

/// Drops or changes lines that only repeat another finding: the `..` of an unconnected or doubly named directory, and
/// the link it adds to the parent that does not count it yet.
fn reconcile(mut findings: Vec<Finding>) -> Vec<Finding> {
    let count = |findings: &[Finding], what: &Finding| findings.iter().filter(|f| *f == what).count();
    let unconnected = count(&findings, &Finding::UnconnectedDirectory);
    let mut excused = unconnected;
    let strays = unconnected + count(&findings, &Finding::SecondDirectoryName);
    for finding in &mut findings {
        match finding {
            Finding::LinksTooLow(_) if excused > 0 => {
                excused -= 1;
                *finding = Finding::UnconnectedDirectory;
            }
            Finding::DotDot if strays == 0 => *finding = Finding::Other("'..' is wrong".to_owned()),
            _ => {}
        }
    }
    findings
}

/// Returns true for `IMAGE: 11/128 files (0.0% non-contiguous), 38/2048 blocks`, `IMAGE: ***** … *****`, and advice.
fn is_summary(line: &str) -> bool {
    (line.contains(" files (") && line.ends_with("blocks"))
        || line.contains("*****")
        || line.contains("WARNING: Filesystem still has errors")
        // No error: nodes that are half full are as any tree has them that did not grow in order.
        || (line.contains(" extent tree (at level ") && line.contains(" could be "))
}

fn classify(line: &str) -> Finding {
    let other = || Finding::Other(line.to_owned());
    if line.contains("bitmap differences:") {
        return if line.contains('+') { Finding::BitsMissing(line.to_owned()) } else { Finding::BitsSetForNothing };
    }
    if continues_bitmap_differences(line) {
        return if line.contains('+') { Finding::BitsMissing(line.to_owned()) } else { Finding::BitsSetForNothing };
    }
    if line.contains("count wrong") {
        return Finding::Counts;
    }
    if line.starts_with("Deleted inode") && line.contains("has zero dtime") {
        return Finding::DeletedInode;
    }
    if line.starts_with("Unattached ") && line.contains("inode") {
        return Finding::Unattached;
    }
    if line.starts_with("Unconnected directory inode") {
        return Finding::UnconnectedDirectory;
    }
    if line.starts_with("Entry '..' in <") {
        return Finding::DotDot;
    }
    // A directory that no name leads to (it is reported as unconnected as well): its parent was deleted in the same
    // write-back, or is not on the disk yet. Neither can be reached, and neither number is reused before both are gone.
    if line.starts_with("Entry '..' in /") && line.contains("has deleted/unused inode") {
        return Finding::DotDot;
    }
    if line.starts_with("'..' in /lost+found/.moafs-exchange-") {
        return Finding::ReplacedDotDot;
    }
    if line.starts_with("'..' in ") {
        return Finding::DotDot;
    }
    if line.contains("is a link to directory") {
        return Finding::SecondDirectoryName;
    }
    if let Some((is, should)) = is_should(line) {
        return match () {
            () if line.contains("ref count is") && is > should => Finding::LinksTooHigh,
            () if line.contains("ref count is") => Finding::LinksTooLow(line.to_owned()),
            () if line.contains("i_blocks is") => Finding::BlockCount,
            () if line.contains("i_size is") && is < should => Finding::SizeTooSmall,
            () if line.contains("i_size is") => Finding::SizeTooLarge(line.to_owned()),
            () => other(),
        };
    }
    other()
}

/// Returns true for a line that continues a long difference list: nothing but signed numbers and ranges.
fn continues_bitmap_differences(line: &str) -> bool {
    line.split_whitespace().all(|item| {
        let body = item.strip_prefix(['+', '-']).unwrap_or(item);
        item.starts_with(['+', '-']) && body.chars().all(|c| c.is_ascii_digit() || "()-".contains(c))
    })
}

/// Returns the numbers of `… is X, should be Y.`
fn is_should(line: &str) -> Option<(u64, u64)> {
    let (before, after) = line.split_once(", should be ")?;
    let is = before.rsplit(' ').next()?.parse().ok()?;
    let should = after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    Some((is, should))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_findings() {
        let cases = [
            ("Free blocks count wrong (5, counted=150950).", Class::Leak),
            ("Block bitmap differences:  -100 -(120--130)", Class::Leak),
            ("Block bitmap differences:  -100 +7", Class::Fatal),
            ("Inode 33 ref count is 5, should be 2.  Fix? no", Class::Leak),
            ("Inode 33 ref count is 1, should be 2.  Fix? no", Class::Fatal),
            ("Unattached inode 32", Class::Benign),
            ("Inode 12, i_size is 1024, should be 2048.  Fix? no", Class::Benign),
            ("Inode 12, i_size is 8192, should be 4096.  Fix? no", Class::Fatal),
            ("Inode 32, i_blocks is 80, should be 16.  Fix? no", Class::Benign),
            ("Multiply-claimed block(s) in inode 12: 100", Class::Fatal),
            ("Entry 'x' in / (2) has deleted/unused inode 32.  Clear? no", Class::Fatal),
            ("x.img: 11/128 files (0.0% non-contiguous), 38/2048 blocks", Class::Clean),
        ];
        for (line, class) in cases {
            let worst = parse(line).iter().map(Finding::class).max().unwrap_or(Class::Clean);
            assert_eq!(worst, class, "{line}");
        }
    }
}
