//! `moafs df`: shows the space of volumes.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use moafs_vfs::api::StatFs;
use serde::Serialize;

use super::paths::by_image;
use super::sizes::Sizes;
use crate::error::{CliError, Result};
use crate::place::Inside;
use crate::volume::{Access, with_volume};
use crate::{mounted, output};

/// Show the space of volumes
///
/// Sizes are in KiB. As with df(1), blocks that are reserved for root are neither used nor available.
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  moafs df disk.img
  moafs df -h root.img home.img raspios.img@2
  moafs df --json disk.img | jq .volumes[0].available

Exit code: 0 everything shown, 1 something was not (and said so)."
)]
pub(crate) struct DfArgs {
    /// Images, or files of them
    #[arg(required = true, value_name = "IMAGE[:PATH]")]
    images: Vec<OsString>,
    #[command(flatten)]
    sizes: Sizes,
}

/// The space of a volume in bytes, and its inodes, as JSON shows them.
#[derive(Debug, Serialize)]
struct Row {
    image: String,
    size: u64,
    used: u64,
    available: u64,
    /// Share in percent of what users see, rounded up; `None` if they see nothing.
    used_percent: Option<u64>,
    inodes: u64,
    inodes_used: u64,
    inodes_free: u64,
}

impl DfArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let images = self.images.iter().map(|image| Inside::parse(image, None)).collect();
        let mut rows = Vec::new();
        let code = by_image(images, |image, places, _going| {
            let space = space(image)?;
            rows.extend(places.iter().map(|_| row(image.to_string_lossy().into_owned(), &space)));
            Ok(())
        })?;
        match rows.as_slice() {
            rows if self.sizes.json => output::json_list("volumes", rows)?,
            [] => {}
            rows => output::print(self.table(rows).as_bytes())?,
        }
        Ok(code)
    }

    fn table(&self, rows: &[Row]) -> String {
        let image = |row: &Row| output::name(row.image.as_bytes());
        let width = rows.iter().map(|row| image(row).chars().count()).max().unwrap_or(0).max(16);
        let size = |bytes: u64| self.sizes.shown(bytes);
        let size_head = if self.sizes.human_readable { "Size" } else { "1K-blocks" };
        let mut text = format!(
            "{:<width$} {size_head:>10} {:>10} {:>10} {:>4} {:>10} {:>10} {:>10}\n",
            "Volume", "Used", "Available", "Use%", "Inodes", "IUsed", "IFree"
        );
        for row in rows {
            text += &format!(
                "{:<width$} {:>10} {:>10} {:>10} {:>4} {:>10} {:>10} {:>10}\n",
                image(row),
                size(row.size),
                size(row.used),
                size(row.available),
                row.used_percent.map_or("-".to_owned(), |percent| format!("{percent}%")),
                row.inodes,
                row.inodes_used,
                row.inodes_free
            );
        }
        text
    }
}

/// Returns the space of a volume: of one that moafs has mounted, through the mount.
fn space(image: &Path) -> Result<StatFs> {
    let Some(target) = mounted::mount_point(image) else {
        return with_volume!(image, Access::Read, |volume| Ok(volume.vfs.stat_fs()));
    };
    let told = rustix::fs::statvfs(&target).map_err(|errno| CliError::host("looking at", &target)(errno.into()))?;
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    Ok(StatFs {
        block_size: small(told.f_frsize),
        blocks: told.f_blocks,
        free: told.f_bfree,
        available: told.f_bavail,
        inodes: told.f_files,
        free_inodes: told.f_ffree,
        id: told.f_fsid,
        name_max: small(told.f_namemax),
    })
}

fn row(image: String, space: &StatFs) -> Row {
    let bytes = |blocks: u64| blocks.saturating_mul(space.block_size.into());
    let used = space.blocks.saturating_sub(space.free);
    let seen = used.saturating_add(space.available);
    let percent = || u64::try_from((u128::from(used) * 100).div_ceil(u128::from(seen))).unwrap_or(100);
    Row {
        image,
        size: bytes(space.blocks),
        used: bytes(used),
        available: bytes(space.available),
        used_percent: (seen > 0).then(percent),
        inodes: space.inodes,
        inodes_used: space.inodes.saturating_sub(space.free_inodes),
        inodes_free: space.free_inodes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_rounded_up_and_leaves_out_what_is_reserved() {
        let space = |free, available| StatFs {
            block_size: 1024,
            blocks: 1000,
            free,
            available,
            inodes: 100,
            free_inodes: 89,
            id: 0,
            name_max: 255,
        };
        let row_of = |free, available| row("a".into(), &space(free, available));
        assert_eq!(row_of(999, 949).used_percent, Some(1));
        assert_eq!(row_of(500, 300).used_percent, Some(63));
        assert_eq!(row_of(1000, 0).used_percent, None);
        let row = row_of(500, 300);
        assert_eq!((row.size, row.used, row.available), (1000 << 10, 500 << 10, 300 << 10));
        assert_eq!((row.inodes_used, row.inodes_free), (11, 89));
    }
}
