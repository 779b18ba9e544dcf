//! `dump.f2fs` as a second reader: it extracts one file's contents from an image.

use std::io;
use std::path::Path;

use super::tools;
use crate::content::Content;
use crate::tree;

/// The answer to the tool's one question.
const YES: &str = "y\n";

/// Returns the contents of a regular file; `None` if the tool is not installed.
///
/// # Errors
/// The tool's output if it left no file.
pub fn file(image: &Path, ino: u64) -> Option<io::Result<Content>> {
    let dir = match tempfile::tempdir_in(tools::scratch()) {
        Ok(dir) => dir,
        Err(error) => return Some(Err(error)),
    };
    let image = image.to_str().expect("test paths are text");
    let ended = tools::run_answered("dump.f2fs", &["-i", &format!("0x{ino:x}"), image], YES, dir.path())?;
    Some(found_in(&dir.path().join("lost_found")).map_err(|error| io::Error::other(format!("{error}: {}", ended.text))))
}

/// Returns the contents of the only file of a directory.
fn found_in(dir: &Path) -> io::Result<Content> {
    let file = std::fs::read_dir(dir)?.next().ok_or_else(|| io::Error::other("no file was dumped"))??;
    tree::content_of(&file.path(), file.metadata()?.len())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::image::f2fs;
    use crate::judges::fsck_f2fs;
    use crate::stamp;

    /// Both readers find the files that `sload.f2fs` puts on a volume.
    #[test]
    fn files_and_names_are_read_as_they_were_written() {
        let image = tempfile::NamedTempFile::new_in(tools::scratch()).unwrap();
        // `sload.f2fs` cannot work on the smallest volumes.
        let roomy = f2fs::ALL.iter().find(|geometry| geometry.name == "f2fs-128m").unwrap();
        let Some(disk) = f2fs::make(roomy) else { return };
        disk.write_to(image.path()).unwrap();
        let source = tempfile::tempdir_in(tools::scratch()).unwrap();
        std::fs::create_dir(source.path().join("d")).unwrap();
        let files = [("d/large", stamp::bytes(1, 0, 300_000, 1)), ("small", b"hello".to_vec())];
        for (name, bytes) in &files {
            std::fs::write(source.path().join(name), bytes).unwrap();
        }
        let (from, to) = (source.path().to_str().unwrap(), image.path().to_str().unwrap());
        if tools::run("sload.f2fs", &["-f", from, to]).is_none() {
            return;
        }
        let names = fsck_f2fs::names(image.path()).unwrap();
        let paths: BTreeSet<String> = names.iter().map(|(path, _)| path.join("/")).collect();
        assert_eq!(paths, BTreeSet::from(["d", "d/large", "small"].map(str::to_owned)));
        for (name, bytes) in &files {
            let (_, ino) = names.iter().find(|(path, _)| path.join("/") == *name).unwrap();
            let mut should = Content::default();
            should.write(0, bytes);
            assert!(file(image.path(), *ino).unwrap().unwrap() == should, "{name}");
        }
    }
}
