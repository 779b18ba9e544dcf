//! `moafs find`: names the files of a volume that have certain properties.

use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Args;
use moafs_runtime::Timestamp;
use moafs_vfs::types::FileKind;

use super::existing;
use super::glob::Glob;
use super::paths::{Going, Look, Paths, look_at_each};
use super::reference;
use super::tree::Tree;
use super::visit::{Visit, visit};
use crate::error::{CliError, Result};
use crate::output;
use crate::place::Inside;

/// The tests and actions of find(1), which have one dash there.
const WITH_ONE_DASH: [&str; 9] =
    ["-name", "-iname", "-type", "-size", "-newer", "-maxdepth", "-mindepth", "-print", "-print0"];

/// Name the files of a volume that have certain properties
///
/// Each path that is given, and everything below it, is named as IMAGE:PATH if all the tests hold. The tests are those
/// of find(1), and may be written with one dash as there. Symbolic links are not followed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs find disk.img:/etc
  moafs find disk.img:/ -name '*.conf' -type f
  moafs find disk.img:/home -iname '*.jpg' -size +10M
  moafs find disk.img:/var -newer disk.img:/etc/machine-id -maxdepth 2
  moafs find disk.img:/tmp -type f -print0 | xargs -0 moafs rm

Exit code: 0 everything looked at, 1 something was not (and said so), 130 interrupted.")]
pub(crate) struct FindArgs {
    #[command(flatten)]
    paths: Paths,
    /// The last part of the path matches this pattern of the shell; quote it
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    name: Vec<OsString>,
    /// The same, without regard to case
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    iname: Vec<OsString>,
    /// Files (f), directories (d), symbolic links (l), block (b) or character devices (c), pipes (p), sockets (s); or
    /// several of them, separated by commas
    #[arg(long, value_name = "TYPES", value_parser = Kinds::parse)]
    r#type: Option<Kinds>,
    /// As many blocks of 512 bytes, rounded up; more with +, fewer with -. Other units: c bytes, w 2 bytes, k, M, G
    #[arg(long, value_name = "[+|-]N[bcwkMG]", value_parser = SizeTest::parse, allow_hyphen_values = true)]
    size: Vec<SizeTest>,
    /// Changed later than this file: a path of the host, or IMAGE:PATH
    #[arg(long, value_name = "FILE")]
    newer: Option<OsString>,
    /// Go down at most so many levels; 0: only the paths that are given
    #[arg(long, value_name = "LEVELS")]
    maxdepth: Option<usize>,
    /// Leave out what lies fewer levels down
    #[arg(long, value_name = "LEVELS", default_value_t = 0)]
    mindepth: usize,
    /// End each name with a zero byte, for `xargs -0`
    #[arg(long)]
    print0: bool,
    /// End each name with a line end, as always without --print0
    #[arg(long = "print")]
    _print: bool,
}

/// Kinds of files.
#[derive(Debug, Clone)]
struct Kinds(Vec<FileKind>);

impl Kinds {
    fn parse(text: &str) -> Result<Kinds, String> {
        let kind = |word: &str| match word {
            "f" => Ok(FileKind::Regular),
            "d" => Ok(FileKind::Directory),
            "l" => Ok(FileKind::Symlink),
            "b" => Ok(FileKind::BlockDevice),
            "c" => Ok(FileKind::CharDevice),
            "p" => Ok(FileKind::Fifo),
            "s" => Ok(FileKind::Socket),
            _ => Err("give f, d, l, b, c, p or s, or several separated by commas".to_owned()),
        };
        text.split(',').map(kind).collect::<Result<_, _>>().map(Kinds)
    }
}

/// A comparison of a size, in units that are rounded up.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SizeTest {
    sign: Option<char>,
    count: u64,
    unit: u64,
}

impl SizeTest {
    fn parse(text: &str) -> Result<SizeTest, String> {
        let sign = text.chars().next().filter(|char| matches!(char, '+' | '-'));
        let rest = text.strip_prefix(['+', '-']).unwrap_or(text);
        let (count, unit) = match rest.char_indices().last() {
            Some((at, 'b')) => (&rest[..at], 512),
            Some((at, 'c')) => (&rest[..at], 1),
            Some((at, 'w')) => (&rest[..at], 2),
            Some((at, 'k')) => (&rest[..at], 1 << 10),
            Some((at, 'M')) => (&rest[..at], 1 << 20),
            Some((at, 'G')) => (&rest[..at], 1 << 30),
            _ => (rest, 512),
        };
        let is_number = !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
        let count = count.parse().ok().filter(|_| is_number);
        let count = count.ok_or("give a number of blocks of 512 bytes, or a unit, such as +10M or -4096c")?;
        Ok(SizeTest { sign, count, unit })
    }

    fn holds(&self, bytes: u64) -> bool {
        let units = bytes.div_ceil(self.unit);
        match self.sign {
            Some('+') => units > self.count,
            Some(_) => units < self.count,
            None => units == self.count,
        }
    }
}

/// Writes the words that find(1) has with one dash as the parser expects them: with two.
pub(crate) fn with_two_dashes(arguments: &mut [OsString]) {
    for argument in arguments.iter_mut().take_while(|argument| *argument != "--") {
        if WITH_ONE_DASH.iter().any(|word| *argument == **word) {
            let mut word = OsString::from("-");
            word.push(&*argument);
            *argument = word;
        }
    }
}

impl FindArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let glob = |ignores_case| move |pattern: &OsString| Glob::new(pattern.as_bytes(), ignores_case);
        let newer = self.newer.as_ref().map(reference::times_of).transpose()?.map(|[_, changed]| changed);
        let mut find = Find {
            names: self.name.iter().map(glob(false)).chain(self.iname.iter().map(glob(true))).collect(),
            newer,
            hides: io::stdout().is_terminal() && !self.print0,
            out: BufWriter::new(io::stdout().lock()),
            args: &self,
        };
        let found = look_at_each(self.paths.places(), &mut find);
        // Names found before a failure are written.
        let ended = find.out.flush().map_err(CliError::Output);
        found.and_then(|code| ended.map(|()| code))
    }
}

struct Find<'a> {
    args: &'a FindArgs,
    names: Vec<Glob>,
    newer: Option<Timestamp>,
    /// True if names are shown as plain text.
    hides: bool,
    out: BufWriter<StdoutLock<'a>>,
}

impl Look for Find<'_> {
    fn at<T: Tree>(&mut self, tree: &T, place: &Inside, going: &mut Going) -> Result<()> {
        let top = existing(tree, place)?;
        visit(tree, top, &place.path, going, |visit| {
            let Visit::Meets { node, kind, path, depth } = visit else { return Ok(true) };
            if depth >= self.args.mindepth && self.holds(tree, node, kind, path)? {
                self.show(place, path)?;
            }
            Ok(self.args.maxdepth.is_none_or(|most| depth < most))
        })
    }
}

impl Find<'_> {
    fn holds<T: Tree>(&self, tree: &T, node: &T::Node, kind: FileKind, path: &[u8]) -> Result<bool> {
        let is_named = self.names.iter().all(|glob| glob.matches(last_name(path)));
        if !is_named || self.args.r#type.as_ref().is_some_and(|Kinds(kinds)| !kinds.contains(&kind)) {
            return Ok(false);
        }
        if self.args.size.is_empty() && self.newer.is_none() {
            return Ok(true);
        }
        let meta = tree.meta(node)?;
        let is_newer = self.newer.is_none_or(|newer| meta.mtime > newer);
        Ok(is_newer && self.args.size.iter().all(|test| test.holds(meta.size)))
    }

    fn show(&mut self, place: &Inside, path: &[u8]) -> Result<()> {
        let named = [place.image.as_os_str().as_bytes(), b":", path].concat();
        let named = if self.hides { output::hidden(&named) } else { named };
        let end: &[u8] = if self.args.print0 { b"\0" } else { b"\n" };
        self.out.write_all(&named).and_then(|()| self.out.write_all(end)).map_err(CliError::Output)
    }
}

/// Returns the last component of a path, which is `/` for the root.
fn last_name(path: &[u8]) -> &[u8] {
    let Some(last) = path.iter().rposition(|&byte| byte != b'/') else { return b"/" };
    let begin = path[..last].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    &path[begin..=last]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_compared_in_units_that_are_rounded_up() {
        let holds = |text: &str, bytes: u64| SizeTest::parse(text).map(|test| test.holds(bytes));
        assert_eq!((holds("1", 1), holds("1", 512), holds("1", 513)), (Ok(true), Ok(true), Ok(false)));
        assert_eq!((holds("+1k", 1024), holds("+1k", 1025)), (Ok(false), Ok(true)));
        assert_eq!((holds("-1M", 0), holds("-1M", 1)), (Ok(true), Ok(false)));
        assert_eq!((holds("3c", 3), holds("2w", 3), holds("-2G", 1 << 30)), (Ok(true), Ok(true), Ok(true)));
        for text in ["", "+", "k", "1K", "1.5M", "--1", "+-1", "ü"] {
            assert!(SizeTest::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_words_of_find_may_have_one_dash() {
        let mut words: Vec<OsString> = ["a.img:/", "-name", "*.c", "-x", "--", "-type"].map(OsString::from).into();
        with_two_dashes(&mut words);
        assert_eq!(words, ["a.img:/", "--name", "*.c", "-x", "--", "-type"]);
    }

    #[test]
    fn a_path_has_a_last_name() {
        for (path, name) in [("/", "/"), ("", "/"), ("/a/b", "b"), ("/a/b/", "b"), ("a", "a")] {
            assert_eq!(last_name(path.as_bytes()), name.as_bytes(), "{path}");
        }
    }
}
