//! Choosing a partition: `IMAGE@CHOICE`, and the only volume of a disk that is divided.
//!
//! CHOICE is the number of a partition, its name or GUID, or the label or UUID of the volume on it. Without one a disk
//! that is no volume itself stands for the only volume on its partitions that moafs knows.

use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use moafs_disk::partition::{Partition, PartitionDisk, PartitionTable, PartitionType};
use moafs_disk::{Lba, SECTOR, SharedDisk};
use uuid::Uuid;

use crate::error::{CliError, Result};
use crate::format_name::{FormatName, read_head};
use crate::output;

/// The part of a disk on which a command looks for its volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// The whole disk, or the only volume on its partitions.
    OnlyVolume,
    /// The whole disk, whatever is on it.
    Whole,
    /// A range of bytes; without an end, the rest of the disk.
    Bytes { offset: u64, len: Option<u64> },
}

/// The disk of a volume, and its first sector on the disk that was opened.
pub(crate) struct Chosen {
    pub(crate) disk: SharedDisk,
    pub(crate) first: Lba,
}

/// A partition, and the volume on it.
struct Found {
    partition: Partition,
    volume: Option<Volume>,
}

/// A volume, by what its superblock says.
struct Volume {
    format: &'static str,
    label: String,
    uuid: Uuid,
}

/// Names of devices by what is on them: the prefix, and the directory of links that udev keeps.
const TAGS: [(&str, &str); 4] = [
    ("UUID=", "/dev/disk/by-uuid"),
    ("LABEL=", "/dev/disk/by-label"),
    ("PARTUUID=", "/dev/disk/by-partuuid"),
    ("PARTLABEL=", "/dev/disk/by-partlabel"),
];

/// Returns the link to the device that a tag as in fstab names; `None` for a path.
fn device_of_tag(name: &str) -> Option<PathBuf> {
    let (tag, directory) = TAGS.iter().find(|(tag, _)| name.starts_with(tag))?;
    let value = name[tag.len()..].trim_matches('"');
    // udev writes all but these characters as `\xNN`.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte >= 0x80 || b"#+-.:=@_".contains(&byte);
    let mut file = Vec::new();
    for byte in value.bytes() {
        if is_plain(byte) { file.push(byte) } else { file.extend(format!("\\x{byte:02x}").bytes()) }
    }
    Some(Path::new(directory).join(OsStr::from_bytes(&file)))
}

/// Splits `IMAGE@CHOICE`, and turns `UUID=…`, `LABEL=…`, `PARTUUID=…` and `PARTLABEL=…` into devices. A file of that
/// name comes first.
pub(crate) fn split(name: &Path) -> (PathBuf, Option<String>) {
    let whole = || (name.to_owned(), None);
    if name.symlink_metadata().is_ok() {
        return whole();
    }
    if let Some(device) = name.to_str().and_then(device_of_tag) {
        return (device, None);
    }
    let bytes = name.as_os_str().as_bytes();
    let Some(at) = bytes.iter().rposition(|byte| *byte == b'@') else { return whole() };
    let image = Path::new(OsStr::from_bytes(&bytes[..at]));
    match std::str::from_utf8(&bytes[at + 1..]) {
        Ok(choice) if !choice.is_empty() && image.exists() => (image.to_owned(), Some(choice.to_owned())),
        _ => whole(),
    }
}

/// Joins what [`split`] has split.
pub(crate) fn join(image: &Path, choice: Option<&str>) -> PathBuf {
    let mut name = image.as_os_str().to_owned();
    if let Some(choice) = choice {
        name.push("@");
        name.push(choice);
    }
    name.into()
}

/// Returns the disk on which a command looks for its volume. `image` is the path without `choice`.
pub(crate) fn choose(image: &Path, disk: SharedDisk, choice: Option<&str>, part: &Part) -> Result<Chosen> {
    match (choice, part) {
        (Some(choice), _) => chosen(image, &disk, choice),
        (None, Part::OnlyVolume) => only_volume(image, disk),
        (None, Part::Whole) => Ok(whole(disk)),
        (None, Part::Bytes { offset, len }) => bytes(image, &disk, *offset, *len),
    }
}

fn whole(disk: SharedDisk) -> Chosen {
    Chosen { disk, first: Lba(0) }
}

fn bytes(image: &Path, disk: &SharedDisk, offset: u64, len: Option<u64>) -> Result<Chosen> {
    let sector = SECTOR as u64;
    if !offset.is_multiple_of(sector) {
        return Err(CliError::Usage(format!("an offset of {offset} bytes is not a multiple of {sector}")));
    }
    let all = disk.limits().sectors;
    let rest = all.saturating_sub(offset / sector);
    let sectors = len.map_or(rest, |len| (len / sector).min(rest));
    if sectors == 0 {
        let end = output::size(all * sector);
        return Err(CliError::Usage(format!("{} is shorter than that: it ends at {end}", output::path(image))));
    }
    part_of(disk, Lba(offset / sector), sectors)
}

fn chosen(image: &Path, disk: &SharedDisk, choice: &str) -> Result<Chosen> {
    let Some(found) = partitions(disk)? else {
        return Err(CliError::Usage(format!("{} has no partitions", output::path(image))));
    };
    let mut fitting = found.iter().filter(|found| found.is(choice));
    match (fitting.next(), fitting.next()) {
        (Some(one), None) if one.partition.fits => disk_of(disk, &one.partition),
        (Some(one), None) => Err(CliError::Usage(format!(
            "partition {} of {} does not lie on the disk: is the image cut short?",
            one.partition.number,
            output::path(image)
        ))),
        (first, _) => {
            let problem = if first.is_some() { "is the name of several partitions" } else { "is no partition" };
            let problem = format!("{} {problem}", output::name(choice.as_bytes()));
            Err(CliError::Partitions { image: image.to_owned(), problem, list: list(&found) })
        }
    }
}

/// Returns the disk as it is if it begins with a volume, or has no partitions: then errors speak of it.
fn only_volume(image: &Path, disk: SharedDisk) -> Result<Chosen> {
    if FormatName::of_head(&read_head(&disk)?).is_some() {
        return Ok(whole(disk));
    }
    let Some(found) = partitions(&disk)? else { return Ok(whole(disk)) };
    let mut volumes = found.iter().filter(|found| found.volume.is_some());
    match (volumes.next(), volumes.next()) {
        (Some(one), None) => disk_of(&disk, &one.partition),
        (first, _) => {
            let problem = if first.is_some() { "has several volumes" } else { "has no volume that moafs knows" };
            let problem = format!("the disk is divided into partitions and {problem}");
            Err(CliError::Partitions { image: image.to_owned(), problem, list: list(&found) })
        }
    }
}

fn disk_of(disk: &SharedDisk, partition: &Partition) -> Result<Chosen> {
    part_of(disk, partition.first, partition.sectors)
}

fn part_of(disk: &SharedDisk, first: Lba, sectors: u64) -> Result<Chosen> {
    Ok(Chosen { disk: Arc::new(PartitionDisk::new(Arc::clone(disk), first, sectors)?), first })
}

/// Returns the partitions of a disk; `None` if it has no table.
fn partitions(disk: &SharedDisk) -> Result<Option<Vec<Found>>> {
    let Some(table) = PartitionTable::read(&**disk)? else { return Ok(None) };
    let mut found = Vec::new();
    for partition in table.partitions {
        let volume = if partition.fits { volume_on(&disk_of(disk, &partition)?.disk)? } else { None };
        found.push(Found { partition, volume });
    }
    Ok(Some(found))
}

/// Returns the volume that a disk begins with.
fn volume_on(disk: &SharedDisk) -> Result<Option<Volume>> {
    let head = read_head(disk)?;
    let Some(format) = FormatName::of_head(&head) else { return Ok(None) };
    let known = match format {
        FormatName::Ext => {
            let superblock = head.get(1024..2048).and_then(|bytes| moafs_ext::format::Superblock::parse(bytes).ok());
            superblock.map(|sb| (sb.family_name(), String::from_utf8_lossy(sb.label()).into_owned(), sb.uuid()))
        }
        FormatName::F2fs => {
            let copies = (0..).zip(head.chunks_exact(4096));
            let superblock = copies
                .into_iter()
                .find_map(|(copy, block)| moafs_f2fs::format::superblock::Superblock::decode(block, copy).ok());
            superblock.map(|sb| (format.name(), sb.label.clone(), sb.uuid))
        }
    };
    let (format, label, uuid) = known.unwrap_or((format.name(), String::new(), [0; 16]));
    Ok(Some(Volume { format, label, uuid: Uuid::from_bytes(uuid) }))
}

/// Names the volume that a disk begins with: `an ext4 volume (data)`.
pub(crate) fn volume_words(disk: &SharedDisk) -> Result<Option<String>> {
    let words = |Volume { format, label, .. }: Volume| match label.as_str() {
        "" => format!("an {format} volume"),
        label => format!("an {format} volume ({})", output::name(label.as_bytes())),
    };
    Ok(volume_on(disk)?.map(words))
}

impl Found {
    /// Returns true if a choice means this partition.
    fn is(&self, choice: &str) -> bool {
        let Partition { number, name, guid, .. } = &self.partition;
        if choice.parse() == Ok(*number) {
            return true;
        }
        let uuid = Uuid::parse_str(choice).ok();
        let volume = self.volume.as_ref();
        (!name.is_empty() && name == choice)
            || volume.is_some_and(|volume| volume.label == choice || uuid == Some(volume.uuid))
            || uuid.is_some_and(|uuid| *guid == Some(uuid.to_bytes_le()))
    }
}

/// Returns the partitions as lines: number, size, contents, name.
fn list(found: &[Found]) -> String {
    let mut lines = String::new();
    for Found { partition, volume } in found {
        let size = output::size(partition.sectors.saturating_mul(SECTOR as u64));
        let contents = match (volume, partition.kind) {
            _ if !partition.fits => "beyond the end of the disk".to_owned(),
            (Some(Volume { format, label, uuid }), _) if label.is_empty() => format!("{format} volume {uuid}"),
            (Some(Volume { format, label, uuid }), _) => {
                format!("{format} volume {uuid} ({})", output::name(label.as_bytes()))
            }
            (None, PartitionType::Guid(guid)) => format!("type {}", Uuid::from_bytes_le(guid)),
            (None, PartitionType::Byte(kind)) => format!("type {kind:#04x}"),
        };
        let name = output::name(partition.name.as_bytes());
        let _ = write!(lines, "\n  {:>3}  {size:>8}  {contents}  {name}", partition.number);
        lines.truncate(lines.trim_end().len());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_fstab_name_devices() {
        for (tag, device) in [
            ("UUID=e1028f21-1d6c", "/dev/disk/by-uuid/e1028f21-1d6c"),
            ("LABEL=\"my data/1\"", r"/dev/disk/by-label/my\x20data\x2f1"),
            ("PARTUUID=1234-01", "/dev/disk/by-partuuid/1234-01"),
            ("PARTLABEL=EFI", "/dev/disk/by-partlabel/EFI"),
        ] {
            assert_eq!(split(Path::new(tag)), (PathBuf::from(device), None));
        }
        assert_eq!(device_of_tag("disk.img"), None);
    }

    #[test]
    fn a_choice_is_split_off_unless_a_file_has_that_name() {
        let dir = tempfile::tempdir().unwrap();
        let (image, strange) = (dir.path().join("disk.img"), dir.path().join("a@b"));
        std::fs::write(&image, "").unwrap();
        std::fs::write(&strange, "").unwrap();
        let named = |choice: &str| join(&image, Some(choice));
        assert_eq!(split(&named("2")), (image.clone(), Some("2".to_owned())));
        assert_eq!(split(&named("a@b")), (named("a@b"), None));
        assert_eq!(split(&strange), (strange.clone(), None));
        assert_eq!(split(&join(&strange, Some("1"))), (strange, Some("1".to_owned())));
        for name in [image.clone(), named(""), dir.path().join("none@1")] {
            assert_eq!(split(&name), (name.clone(), None));
        }
    }
}
