//! Commands that look at a volume which moafs has mounted: they go through the mount, and ask its daemon.

mod support;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use support::{Format, Mounted, Scratch, can_mount, ok};

support::tests_of_both! {
    info_and_df_show_a_mounted_volume_as_it_is,
    a_map_of_a_mounted_volume_is_drawn,
    the_layout_is_looked_at_beside_writers,
    a_mount_takes_one_question_at_a_time_from_its_owner,
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&ok(arguments)).expect("JSON")
}

/// Returns what is known of the layout, but for what depends on the order of a look.
fn layout(info: &Value) -> (Value, Value, Value) {
    (info["layout"]["files"].clone(), info["layout"]["directories"].clone(), info["layout"]["free"].clone())
}

fn free_of_table(format: Format, info: &Value) -> u64 {
    match format {
        Format::F2fs => info["segments"]["counts"]["free"].as_u64().unwrap(),
        _ => info["groups"].as_array().unwrap().iter().map(|group| group["free_blocks"].as_u64().unwrap()).sum(),
    }
}

fn info_and_df_show_a_mounted_volume_as_it_is(format: Format) {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_volume(format);
    let image = scratch.image().display().to_string();
    let mounted = Mounted::new(&scratch, "");
    let before = json(&["info", "--json", &image]);
    fs::create_dir(mounted.path("dir")).unwrap();
    for name in ["one", "two", "three"] {
        fs::write(mounted.path("dir").join(name), vec![7; 3 << 20]).unwrap();
    }
    fs::hard_link(mounted.path("dir/one"), mounted.path("again")).unwrap();
    rustix::fs::syncfs(fs::File::open(&mounted.target).unwrap()).unwrap();
    let live = json(&["info", "--json", &image]);
    assert_eq!(live["schema"], 1);
    assert_eq!(live["layout"]["files"]["files"], 3);
    assert!(live["layout"]["files"]["blocks"].as_u64() >= Some(3 * (3 << 20) / 4096), "{live}");
    assert!(free_of_table(format, &live) < free_of_table(format, &before));
    let state = if format == Format::F2fs { &live["checkpoint"]["state"] } else { &live["superblock"]["state"] };
    assert_eq!(*state, format!("mounted on {}", mounted.target.display()));
    if format == Format::Ext2 {
        let free = |info: &Value| info["superblock"]["free_blocks"].as_u64().unwrap();
        assert!(free(&before) - free(&live) >= 9 << 10, "blocks of 1 KiB");
        assert!(ok(&["info", "-g", &image]).contains("bitmaps and table"));
    }
    let text = ok(&["info", &image]);
    assert!(text.contains("mounted on") && text.contains("layout score"), "{text}");
    assert!(!ok(&["info", "-H", &image]).contains("layout score"));
    let space = json(&["df", "--json", &image])["volumes"][0].clone();
    let told = rustix::fs::statvfs(&mounted.target).unwrap();
    assert_eq!(space["size"], told.f_blocks * told.f_frsize);
    assert_eq!((space["inodes"].as_u64(), space["inodes_free"].as_u64()), (Some(told.f_files), Some(told.f_ffree)));
    mounted.unmount();
    // The same, from the image alone.
    let alone = json(&["info", "--json", &image]);
    assert_eq!(layout(&alone), layout(&live));
    assert_eq!(alone["layout"]["metadata"], live["layout"]["metadata"]);
    assert_eq!(json(&["df", "--json", &image])["volumes"][0]["used"], space["used"]);
}

fn a_map_of_a_mounted_volume_is_drawn(format: Format) {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_volume(format);
    let image = scratch.image().display().to_string();
    let mounted = Mounted::new(&scratch, "");
    fs::write(mounted.path("large"), vec![7; 3 << 20]).unwrap();
    rustix::fs::syncfs(fs::File::open(&mounted.target).unwrap()).unwrap();
    let live = ok(&["map", &image, "-o", "-"]);
    assert!(live.starts_with("<svg") && live.ends_with("</svg>\n") && live.contains(&image), "{live}");
    mounted.unmount();
    let alone = ok(&["map", &image, "-o", "-"]);
    if format == Format::Ext2 {
        assert_eq!(live, alone);
    }
}

fn the_layout_is_looked_at_beside_writers(format: Format) {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_volume(format);
    let image = scratch.image().display().to_string();
    let mounted = Mounted::new(&scratch, "");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2_usize {
            let (done, dir) = (&done, mounted.path(&format!("w{writer}")));
            scope.spawn(move || {
                for round in 0.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    fs::create_dir_all(dir.join("sub")).unwrap();
                    for file in 0..20_usize {
                        let name = dir.join("sub").join(file.to_string());
                        fs::write(&name, vec![1; (file * 7919 + round) % 60_000]).unwrap();
                        fs::rename(&name, dir.join(file.to_string())).unwrap();
                    }
                    fs::remove_dir_all(&dir).unwrap();
                }
            });
        }
        for _ in 0..15 {
            let info = json(&["info", "--json", &image]);
            assert!(info["layout"]["free"]["blocks"].as_u64() > Some(0), "{info}");
            assert!(ok(&["map", &image, "-o", "-"]).ends_with("</svg>\n"));
        }
        done.store(true, Ordering::Relaxed);
    });
    let stats = mounted.stats();
    assert!(stats["failed"].is_null() && stats["read_only"] == false, "{stats}");
    mounted.unmount();
    scratch.judge();
}

fn a_mount_takes_one_question_at_a_time_from_its_owner(format: Format) {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_volume(format);
    let mounted = Mounted::new(&scratch, "");
    let control = mounted.path(".moafs/layout");
    let ask = |text: &str| fs::write(&control, text);
    let status = || -> Value { serde_json::from_slice(&fs::read(&control).unwrap()).unwrap() };
    for wrong in ["", "{}", r#"{"start": {"token": 1}}"#, r#"{"begin": {"token": 1, "question": {}}}"#] {
        assert!(wrong.is_empty() || ask(wrong).is_err(), "{wrong}");
    }
    ask(r#"{"start": {"token": 5, "question": {"nothing": 1}}}"#).unwrap();
    support::wait_until("the answer", || status()["running"] == false);
    assert!(status()["error"].as_str().unwrap().contains("unknown variant"), "{}", status());
    ask(r#"{"start": {"token": 6, "question": {"map": {"title": "t"}}}}"#).unwrap();
    support::wait_until("the answer", || status()["running"] == false);
    assert!(status()["outcome"].as_str().unwrap().starts_with("<svg"));
    ask(r#"{"forget": {"token": 6}}"#).unwrap();
    assert!(status()["outcome"].is_null() && status()["token"].is_null());
    mounted.unmount();
}
