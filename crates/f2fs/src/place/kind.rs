//! Temperature by kind: which log a block joins, as the format's users expect it (`docs/formats/f2fs.md`, section 9).
//!
//! Data: directories and files marked hot are hot; files marked cold and what the cleaner moved are cold; the rest is
//! warm. Files are marked when they are created, by the extensions that the superblock lists. Nodes: direct nodes of
//! directories are hot, those of files warm (the only log that roll-forward recovery reads, so this is no matter of
//! taste), indirect nodes cold.

use crate::format::Log;
use crate::place::temperature::Heat;

/// A data block's traits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traits {
    /// It holds entries of a directory.
    pub directory: bool,
    /// The file's mark, if it has one.
    pub mark: Option<Heat>,
    /// The cleaner moves it.
    pub moved: bool,
}

/// Returns the log that a data block joins.
pub fn data_log(traits: Traits) -> Log {
    match traits {
        Traits { directory: true, .. } => Log::HotData,
        Traits { moved: true, .. } | Traits { mark: Some(Heat::Cold), .. } => Log::ColdData,
        Traits { mark: Some(Heat::Hot), .. } => Log::HotData,
        Traits { mark: None, .. } => Log::WarmData,
    }
}

/// Returns the log that a node joins. `direct`: an inode, a direct node or a node of extended attributes.
pub fn node_log(directory: bool, direct: bool) -> Log {
    match (direct, directory) {
        (true, true) => Log::HotNode,
        (true, false) => Log::WarmNode,
        (false, _) => Log::ColdNode,
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

    #[test]
    fn logs_follow_the_kind() {
        assert_eq!(data_log(Traits { directory: true, mark: None, moved: true }), Log::HotData);
        assert_eq!(data_log(Traits { moved: true, mark: Some(Heat::Hot), ..Traits::default() }), Log::ColdData);
        assert_eq!(data_log(Traits { mark: Some(Heat::Hot), ..Traits::default() }), Log::HotData);
        assert_eq!(data_log(Traits::default()), Log::WarmData);
        assert_eq!(
            [node_log(true, true), node_log(false, true), node_log(true, false)],
            [Log::HotNode, Log::WarmNode, Log::ColdNode]
        );
    }
}
