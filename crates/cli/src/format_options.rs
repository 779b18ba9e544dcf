//! The mount options for volumes of one format only, and what they set.

use moafs_ext::place::Policy;
use moafs_mount::options::{FormatOption, FormatOptions, MountOption, OptionError};
use moafs_vfs::Options;

/// The most sections that are cleaned together.
const GATHER_MAX: u64 = 64;

/// The options of all formats, for parsing and for help texts.
pub(crate) const FORMAT_OPTIONS: &[FormatOptions] = &[
    FormatOptions {
        format: "ext2",
        options: &[MountOption::of_values("place", "placement of data (default cowrite)", &Policy::VALUES)],
    },
    FormatOptions {
        format: "f2fs",
        options: &[
            MountOption::new(
                "cleaner",
                "POLICY",
                "greedy, cost-benefit (default), hole-plugging, adaptive, age-threshold",
            ),
            MountOption::new(
                "reuse",
                "never|always|auto",
                "write new data into holes of used segments; auto: if that costs less than cleaning (default auto)",
            ),
            MountOption::new(
                "temperature",
                "kind|wolf",
                "tell hot from cold data by kind of file, or by rewrites (default kind)",
            ),
            MountOption::new(
                "clean-order",
                "found|file",
                "order of moved blocks in cleaning: as found, or by file (default file)",
            ),
            MountOption::new("gather", "N", "sections to clean together, 1 to 64 (default 1)"),
            MountOption::new("background_gc", "on|off", "clean while no requests come (default on)"),
            MountOption::new("discard", "", "discard free segments on the device (default)"),
            MountOption::new("nodiscard", "", "discard nothing"),
        ],
    },
];

/// Returns how an ext2 volume is opened with the options given.
pub(crate) fn ext_options(options: &Options, given: &[FormatOption]) -> Result<moafs_ext::OpenOptions, OptionError> {
    let Options { read_only, transfer_bytes_max, .. } = *options;
    let mut ext = moafs_ext::OpenOptions { read_only, transfer_bytes_max, place: Default::default() };
    for option in given {
        match option.name {
            "place" => ext.place = option.parse()?,
            other => unreachable!("{other} is no option of ext2"),
        }
    }
    Ok(ext)
}

/// Returns how an F2FS volume is opened with the options given.
pub(crate) fn f2fs_options(options: &Options, given: &[FormatOption]) -> Result<moafs_f2fs::OpenOptions, OptionError> {
    let Options { read_only, transfer_bytes_max, .. } = *options;
    let mut f2fs = moafs_f2fs::OpenOptions { read_only, transfer_bytes_max, ..Default::default() };
    for option in given {
        match option.name {
            "cleaner" => f2fs.cleaner = option.parse()?,
            "reuse" => f2fs.reuse = option.parse()?,
            "temperature" => f2fs.temperature = option.parse()?,
            "clean-order" => f2fs.clean_order = option.parse()?,
            "gather" => f2fs.gather = option.number(1..=GATHER_MAX)? as u32,
            "background_gc" => f2fs.background = option.on_or_off()?,
            "discard" => f2fs.discard = true,
            "nodiscard" => f2fs.discard = false,
            other => unreachable!("{other} is no option of F2FS"),
        }
    }
    Ok(f2fs)
}
