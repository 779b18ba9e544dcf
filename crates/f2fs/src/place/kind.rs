//! Temperature by kind: which files are hot or cold, as the format's users expect it (`docs/formats/f2fs.md`,
//! section 9).
//!
//! Files are marked when they are created, by the extensions that the superblock lists; those without a mark are warm.

use crate::place::heat::{Bounds, FileBlocks, Heat, Separator};

/// The policy: by the mark of the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct ByKind;

impl ByKind {
    pub(super) fn separator(self, _seed: u64, _bounds: Bounds) -> Box<dyn Separator> {
        Box::new(ByKind)
    }
}

impl Separator for ByKind {
    fn heat(&mut self, blocks: &FileBlocks, _now_ns: u64) -> Option<Heat> {
        blocks.mark
    }
}

/// The superblock's lists of extensions, without dots; `*` stands for every file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extensions {
    /// Files that will rarely change.
    pub cold: Vec<Vec<u8>>,
    /// Files that will often change.
    pub hot: Vec<Vec<u8>>,
}

impl Extensions {
    /// Returns the mark of a new file of this name; the cold list goes first.
    pub fn mark(&self, name: &[u8]) -> Option<Heat> {
        let any = |list: &[Vec<u8>]| list.iter().any(|extension| matches(name, extension));
        match () {
            () if any(&self.cold) => Some(Heat::Cold),
            () if any(&self.hot) => Some(Heat::Hot),
            () => None,
        }
    }
}

/// True if the part after one of the name's dots begins with the extension; ASCII letters match in
/// either case.
fn matches(name: &[u8], extension: &[u8]) -> bool {
    let starts = |rest: &[u8]| rest.get(..extension.len()).is_some_and(|start| start.eq_ignore_ascii_case(extension));
    extension == b"*" || !extension.is_empty() && name.split(|&byte| byte == b'.').skip(1).any(starts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_marked_by_any_of_their_extensions() {
        let lists = Extensions { cold: vec![b"mp4".to_vec(), b"jpg".to_vec()], hot: vec![b"db".to_vec()] };
        let cases: [(&[u8], Option<Heat>); 8] = [
            (b"film.mp4", Some(Heat::Cold)),
            (b"film.MP4.part", Some(Heat::Cold)),
            (b"names.db", Some(Heat::Hot)),
            (b"names.db-wal", Some(Heat::Hot)),
            (b"names.jpg.db", Some(Heat::Cold)),
            (b"mp4", None),
            (b"film.mp", None),
            (b"a.", None),
        ];
        for (name, mark) in cases {
            assert_eq!(lists.mark(name), mark, "{}", name.escape_ascii());
        }
        assert_eq!(Extensions { cold: vec![], hot: vec![b"*".to_vec()] }.mark(b"x"), Some(Heat::Hot));
        assert_eq!(Extensions { cold: vec![vec![]], hot: vec![] }.mark(b"x.y"), None);
    }
}
