//! [`Colors`]: the colours of names in listings, as ls(1) has them: those of `LS_COLORS`, or its defaults.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use moafs_vfs::types::FileKind;

use super::tree::Meta;

/// Keys of kinds in `LS_COLORS`, and the colours that they have without it.
const DEFAULTS: &str =
    "di=01;34:ln=01;36:pi=33:so=01;35:bd=01;33:cd=01;33:su=37;41:sg=30;43:tw=30;42:ow=34;42:st=37;44:ex=01;32";
/// The escape sequence that ends a colour.
const END: &str = "\x1b[0m";

/// The cases in which names have colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorWhen {
    Always,
    /// On terminals
    Auto,
    Never,
}

impl ColorWhen {
    /// Returns the colours, if names have some.
    pub(crate) fn colors(self) -> Option<Colors> {
        let has_colors = match self {
            ColorWhen::Always => true,
            ColorWhen::Auto => io::stdout().is_terminal(),
            ColorWhen::Never => false,
        };
        has_colors.then(|| Colors::parse(&std::env::var("LS_COLORS").unwrap_or_default()))
    }
}

/// The colours of names by kind, and by how they end.
#[derive(Debug)]
pub(crate) struct Colors {
    /// Keys and colours, the strongest first.
    pairs: Vec<(String, String)>,
}

impl Colors {
    fn parse(text: &str) -> Colors {
        let pair = |entry: &str| {
            let (key, color) = entry.split_once('=')?;
            let is_color = color.bytes().all(|byte| byte.is_ascii_digit() || byte == b';');
            is_color.then(|| (key.to_owned(), color.to_owned()))
        };
        Colors { pairs: text.rsplit(':').chain(DEFAULTS.split(':')).filter_map(pair).collect() }
    }

    /// Returns a name in its colour.
    pub(crate) fn paint(&self, shown: &[u8], name: &[u8], meta: &Meta) -> Vec<u8> {
        match self.of(name, meta) {
            Some(color) => [b"\x1b[", color.as_bytes(), b"m", shown, END.as_bytes()].concat(),
            None => shown.to_vec(),
        }
    }

    fn of(&self, name: &[u8], meta: &Meta) -> Option<&str> {
        let color = |key: &str| self.pairs.iter().find(|(of, _)| of == key).map(|(_, color)| color.as_str());
        let by_end = || {
            let fits = |key: &str| key.strip_prefix('*').is_some_and(|end| name.ends_with(end.as_bytes()));
            self.pairs.iter().find(|(key, _)| fits(key)).map(|(_, color)| color.as_str())
        };
        let by_kind = match kind_key(meta) {
            Some(key) => color(key),
            None => by_end().or_else(|| color("fi")),
        };
        by_kind.filter(|color| !matches!(*color, "" | "0" | "00"))
    }
}

/// Returns the key of a file's kind; `None` for a regular file with nothing special.
fn kind_key(meta: &Meta) -> Option<&'static str> {
    let has = |bits: u32| meta.perm & bits == bits;
    Some(match meta.kind {
        FileKind::Directory if has(0o1002) => "tw",
        FileKind::Directory if has(0o0002) => "ow",
        FileKind::Directory if has(0o1000) => "st",
        FileKind::Directory => "di",
        FileKind::Symlink => "ln",
        FileKind::Fifo => "pi",
        FileKind::Socket => "so",
        FileKind::BlockDevice => "bd",
        FileKind::CharDevice => "cd",
        FileKind::Regular if has(0o4000) => "su",
        FileKind::Regular if has(0o2000) => "sg",
        FileKind::Regular if meta.perm & 0o111 != 0 => "ex",
        FileKind::Regular => return None,
    })
}

#[cfg(test)]
mod tests {
    use moafs_runtime::Timestamp;

    use super::super::tree::FileId;
    use super::*;

    fn meta(kind: FileKind, perm: u32) -> Meta {
        let (id, time) = (FileId::Volume { volume: 0, ino: 1 }, Timestamp::new(0, 0));
        let (uid, gid, size, rdev, nlink, sectors) = (0, 0, 0, 0, 1, 0);
        Meta { kind, perm, uid, gid, size, rdev, nlink, sectors, atime: time, mtime: time, id }
    }

    #[test]
    fn kinds_and_ends_of_names_have_colours() {
        let colors = Colors::parse("di=01;35:*.gz=01;31:*.tar.gz=32:ex=:bad=\x1b[2J:ln=target");
        let of = |name: &str, kind, perm| colors.of(name.as_bytes(), &meta(kind, perm));
        assert_eq!(of("d", FileKind::Directory, 0o755), Some("01;35"));
        assert_eq!(of("d", FileKind::Directory, 0o1777), Some("30;42"));
        assert_eq!(of("a.tar.gz", FileKind::Regular, 0o644), Some("32"));
        assert_eq!(of("a.gz", FileKind::Regular, 0o644), Some("01;31"));
        assert_eq!(of("run", FileKind::Regular, 0o755), None);
        assert_eq!(of("su", FileKind::Regular, 0o4755), Some("37;41"));
        assert_eq!(of("link", FileKind::Symlink, 0o777), Some("01;36"));
        assert_eq!(of("file", FileKind::Regular, 0o644), None);
        assert_eq!(colors.paint(b"d?", b"d\n", &meta(FileKind::Directory, 0)), b"\x1b[01;35md?\x1b[0m");
    }
}
