//! The result of a check can be handed to other programs.

use moafs_disk::mem::MemDisk;
use moafs_ext::check::{CheckOptions, Mode, check};
use moafs_ext::mkfs::{MkfsOptions, mkfs};
use moafs_runtime::Timestamp;

#[test]
fn findings_are_json_objects_with_named_fields() {
    let disk = MemDisk::new((8 << 20) / 512);
    let now = Timestamp::new(1_700_000_000, 0);
    mkfs(&disk, &MkfsOptions::new([1; 16], [2; 16], now)).unwrap();
    // s_free_blocks_count is set to 5.
    disk.poke(1024 + 0x0C, &[5, 0, 0, 0]);
    let outcome =
        check(&disk, &CheckOptions { mode: Mode::No, force: true, superblock: None, now }, &mut |_| ()).unwrap();
    assert_eq!(outcome.exit_code(), 0, "a wrong total alone is a warning");
    let json = serde_json::to_value(&outcome).unwrap();
    let finding = &json["findings"][0];
    assert_eq!(finding["issue"], "total_count");
    assert_eq!(finding["count"], "free_blocks");
    assert_eq!(finding["stored"], 5);
    assert_eq!(finding["severity"], "warning");
    assert_eq!(finding["repaired"], false);
}
