//! The times of a file that a command is given as an example: `touch -r FILE`, `find -newer FILE`.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;

use moafs_runtime::Timestamp;

use super::found;
use super::paths::{Going, Look, look_at_each};
use super::tree::{LastLink, Tree};
use crate::error::{CliError, Result};
use crate::place::{Inside, Place};

/// Returns the times of access and change of a file, on the host or on a volume.
pub(super) fn times_of(reference: &OsString) -> Result<[Timestamp; 2]> {
    match Place::parse(reference) {
        Place::Host(path) => {
            let meta = path.metadata().map_err(CliError::host("looking at", &path))?;
            let nanos = |nanos: i64| u32::try_from(nanos).unwrap_or(0);
            let times = [(meta.atime(), meta.atime_nsec()), (meta.mtime(), meta.mtime_nsec())];
            Ok(times.map(|(secs, fraction)| Timestamp::new(secs, nanos(fraction))))
        }
        Place::Volume(inside) => {
            let mut reference = Reference { times: None };
            look_at_each(vec![Ok(inside)], &mut reference)?;
            reference.times.ok_or_else(|| CliError::Usage("there are no times to take over".to_owned()))
        }
    }
}

/// The file on a volume whose times are taken over.
struct Reference {
    times: Option<[Timestamp; 2]>,
}

impl Look for Reference {
    fn at<T: Tree>(&mut self, tree: &T, place: &Inside, _going: &mut Going) -> Result<()> {
        let meta = tree.meta(&found(tree, place, LastLink::Followed)?)?;
        self.times = Some([meta.atime, meta.mtime]);
        Ok(())
    }
}
