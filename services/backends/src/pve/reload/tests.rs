use std::fs;
use std::time::Duration;

use super::super::unread::Trouble;
use super::super::verdict::WRITING;
use super::*;
use crate::testing::PveTree;

const GOOD: &str = "name: good\nnet0: virtio=BC:24:11:00:00:01,bridge=vmbr0\n";

/// A loader, the tree it looks at, and the time.
struct Bench {
    pve: PveTree,
    loader: Loader,
    now: Instant,
    looks: u64,
}

impl Bench {
    fn new(pve: PveTree) -> Self {
        let loader = Loader::new(Tree::new(pve.path().to_owned(), "pve1"), Arc::default());
        Self { pve, loader, now: Instant::now(), looks: 0 }
    }

    fn counted() -> Self {
        Self::new(PveTree::cluster("pve1").unwrap())
    }

    /// Looks, and says what happened in one word for each event.
    fn look(&mut self) -> Vec<String> {
        self.look_at(&[])
    }

    fn look_at(&mut self, touched: &[u32]) -> Vec<String> {
        let touched = touched.iter().map(|vmid| VmId::new(*vmid).unwrap()).collect();
        self.looks += 1;
        let look = self.loader.look(self.looks, &touched, self.now);
        let events = look.events.iter().map(|event| match event {
            Event::Loaded(record) => {
                format!("loaded {} {}", record.vm.vmid, record.vm.name.as_deref().unwrap_or("-"))
            }
            Event::Moved { vmid, owner } => format!("moved {vmid} {owner}"),
            Event::Unusable { vmid, .. } => format!("unusable {vmid}"),
            Event::Usable { vmid } => format!("usable {vmid}"),
            Event::Believed { file, .. } => format!("believed {file}"),
            Event::Forgotten { vmid } => format!("forgotten {vmid}"),
            Event::Pooled { pools, moved } => format!("pooled {} moved {moved}", pools.members().count()),
            Event::Settings(datacenter) => format!("settings {:?}", datacenter.registered_tags),
            Event::Unread { file, .. } => format!("unread {file}"),
        });
        events.chain(look.failed.iter().map(|_| String::from("failed"))).collect()
    }

    /// What cannot be read, and for how many seconds.
    fn unread(&self) -> Vec<String> {
        let seconds = |trouble: &Trouble| self.now.duration_since(trouble.since).as_secs();
        let believed = |stance| if stance == Stance::Believed { " believed" } else { "" };
        let told = |(file, stance, trouble)| format!("{file} {}{}", seconds(trouble), believed(stance));
        self.loader.known.unread.iter().map(told).collect()
    }

    /// What is served for 106.
    fn serves(&self) -> String {
        match self.loader.known.vms.get(&VmId::new(106).unwrap()) {
            None => String::from("nothing"),
            Some(entry) => {
                let name = entry.record.vm.name.as_deref().unwrap_or("-");
                format!("{name}{}", if entry.is_stale() { " stale" } else { "" })
            }
        }
    }
}

#[test]
fn only_what_was_counted_is_read_again() {
    let mut bench = Bench::counted();
    bench.pve.put(106, "name: one\n").unwrap();
    bench.pve.put(107, "name: two\n").unwrap();
    assert_eq!(bench.look(), ["loaded 106 one", "loaded 107 two"]);
    let files = bench.loader.progress.files();
    assert_eq!(bench.look(), [""; 0]);
    assert_eq!(bench.loader.progress.files(), files);
    bench.pve.put(107, "name: six\n").unwrap();
    assert_eq!(bench.look(), ["loaded 107 six"]);
    assert_eq!(bench.loader.progress.files(), files + 1);
}

#[test]
fn a_hint_is_followed_where_the_count_says_nothing() {
    let mut bench = Bench::counted();
    bench.pve.put(106, "name: one\n").unwrap();
    bench.look();
    fs::write(bench.pve.config(106), "name: two\n").unwrap();
    assert_eq!(bench.look(), [""; 0]);
    assert_eq!(bench.look_at(&[106, 999]), ["loaded 106 two"]);
}

#[test]
fn the_same_bytes_again_are_no_change() {
    let mut bench = Bench::counted();
    bench.pve.put(106, GOOD).unwrap();
    bench.look();
    bench.pve.put_in_place(106, GOOD).unwrap();
    assert_eq!(bench.look(), [""; 0]);
}

#[test]
fn an_edit_in_place_of_equal_length_is_seen_with_and_without_counts() {
    for pve in [PveTree::cluster("pve1"), PveTree::uncounted("pve1"), PveTree::plain("pve1")] {
        let mut bench = Bench::new(pve.unwrap());
        bench.pve.put(106, "name: one\n").unwrap();
        bench.look();
        bench.pve.put_in_place(106, "name: two\n").unwrap();
        assert_eq!(bench.look(), ["loaded 106 two"]);
    }
}

#[test]
fn a_configuration_that_moves_is_the_same_one() {
    let mut bench = Bench::counted();
    bench.pve.put(106, GOOD).unwrap();
    bench.look();
    bench.pve.migrate(106, "pve2").unwrap();
    assert_eq!(bench.look(), ["moved 106 pve2"]);
    assert_eq!(bench.serves(), "good");
}

#[test]
fn a_file_that_is_empty_for_a_moment_wipes_nothing() {
    let mut bench = Bench::counted();
    bench.pve.put(106, GOOD).unwrap();
    bench.look();
    bench.pve.put_in_place(106, " \n").unwrap();
    assert_eq!(bench.look(), ["unusable 106"]);
    assert_eq!(bench.serves(), "good stale");
    assert_eq!(bench.look(), [""; 0], "told once");
    assert_eq!(bench.unread(), ["106.conf 0"]);
    bench.pve.put_in_place(106, GOOD).unwrap();
    assert_eq!(bench.look(), ["usable 106"]);
    assert_eq!(bench.serves(), "good");
    assert_eq!(bench.unread(), [""; 0]);
}

/// As an editor's pause leaves them, line by line and in the middle of one, and as faults do.
#[test]
fn half_a_file_wipes_nothing_and_counts_when_it_stays() {
    const UUID: &str = "smbios1: uuid=2c8c7c76-a26c-4eb7-b04c-bf52bc095b81\n";
    let whole = format!("{GOOD}{UUID}");
    let new = format!("name: new\n{UUID}");
    let plain = format!("#Notes\n{GOOD}sockets: 2\nsshkeys: ssh-ed25519%20AAAA\ntags: a\n");
    let cut = |lines: usize| plain.split_inclusive('\n').take(lines).collect::<String>();
    let (keyless, portless, odd) = (cut(4), cut(2), format!("{GOOD} name: odd\n"));
    let gone = format!("{GOOD}usb0: host=1-1\nvga: none\n");
    for (was, half, served) in [
        (whole.as_str(), "name: new\n", false),
        (&whole, "name: new\nsmbios1: uuid=2c8c\n", false),
        (&whole, "name: n", false),
        (&whole, new.trim_end(), false),
        (GOOD, "name: n", false),
        // One that was never there cannot be missed.
        (GOOD, "name: new\n", true),
        // Proxmox writes this when a VM is destroyed.
        (&whole, "lock: destroyed\n", true),
        (GOOD, "lock: destroyed\n", true),
        (&whole, &new, true),
        // Nobody can have meant such a line, unless it stood there before.
        (GOOD, "name: new\n\u{0}\u{0}\u{0}\n", false),
        (GOOD, "name: new\nnet0\n", false),
        (GOOD, "name: new\n[PENDING]\nelf\u{7f}\n", false),
        (GOOD, "name: new\n[snap]\nnonsense\n", true),
        (&odd, "name: new\nnet0\n", true),
        (&odd, "name: n", false),
        // What this version drops another one may write.
        (GOOD, "name: new\nfuture: 1\nnet0: future\n[future:x]\n", true),
        // The first lines of a file, which has no UUID. One line less is an edit, and so is what changes nothing for us.
        (&plain, &keyless, false),
        (&plain, &portless, false),
        (&plain, &cut(5), true),
        (&plain, "name: good\n", true),
        (&gone, GOOD, true),
        // And not one option of it.
        (&plain, &cut(1), false),
        (GOOD, "[snap]\nname: new\n", false),
        ("lock: create\n", "#only Notes\n", true),
    ] {
        let mut bench = Bench::counted();
        bench.pve.put(106, was).unwrap();
        bench.look();
        bench.pve.put_in_place(106, half).unwrap();
        let events = bench.look();
        assert_eq!(events[0].starts_with("loaded"), served, "{half}: {events:?}");
        if served {
            continue;
        }
        assert_eq!((events, bench.serves()), (vec!["unusable 106".to_owned()], "good stale".to_owned()), "{half}");
        bench.now += WRITING - Duration::from_millis(1);
        assert_eq!(bench.look(), [""; 0], "{half}");
        bench.now += Duration::from_millis(1);
        assert!(bench.look()[0].starts_with("loaded 106 "), "{half}");
        assert!(!bench.serves().ends_with("stale"), "{half}");
    }
}

#[test]
fn a_file_that_stays_empty_is_a_vm_without_content() {
    let mut bench = Bench::counted();
    bench.pve.put(106, GOOD).unwrap();
    bench.look();
    bench.pve.put_in_place(106, "").unwrap();
    bench.look();
    bench.now += WRITING;
    assert_eq!(bench.look(), ["loaded 106 -", "believed 106.conf"]);
    assert_eq!(bench.serves(), "-");
}

/// What Proxmox never leaves so is told for as long as it is there; what somebody may have meant is not.
#[test]
fn half_a_file_that_is_believed_is_told_until_it_is_whole() {
    const UUID: &str = "smbios1: uuid=2c8c7c76-a26c-4eb7-b04c-bf52bc095b81\n";
    let whole = format!("{GOOD}{UUID}");
    let told = |seconds: u64| vec![format!("106.conf {seconds} believed")];
    for (half, lasts) in [
        ("", true),
        ("\u{0}\u{1}\nnonsense\n", true),
        ("name: new\nnonsense\n", true),
        ("name: new", true),
        ("#only Notes\n", true),
        ("name: new\n", false),
    ] {
        for before in [Some(&whole), None] {
            let mut bench = Bench::counted();
            if let Some(before) = before {
                bench.pve.put(106, before).unwrap();
                bench.look();
            }
            bench.pve.put_in_place(106, half).unwrap();
            bench.look();
            assert!(before.is_some() || bench.unread().is_empty(), "{half:?}: it may be a clone's");
            bench.now += WRITING;
            assert_eq!(bench.look().iter().any(|event| event == "believed 106.conf"), lasts, "{half:?} {before:?}");
            if !lasts {
                assert_eq!(bench.unread(), [""; 0], "{half:?}");
                continue;
            }
            assert_eq!(bench.unread(), told(5), "{half:?} {before:?}");
            bench.now += WRITING;
            assert_eq!(bench.look_at(&[106]), [""; 0], "{half:?}: told once");
            assert_eq!(bench.unread(), told(10), "{half:?}");

            // It is not for another reason that it was not whole.
            let path = bench.pve.config(106);
            fs::remove_file(&path).unwrap();
            assert_eq!(bench.look_at(&[106]), ["unusable 106"], "{half:?}");
            assert_eq!(bench.unread(), ["106.conf 10"], "{half:?}");
            fs::write(&path, half).unwrap();
            assert_eq!(bench.look_at(&[106]), ["believed 106.conf"], "{half:?}");
            assert_eq!(bench.unread(), told(10), "{half:?}");

            bench.pve.put(106, &whole).unwrap();
            assert_eq!(bench.look(), ["loaded 106 good"], "{half:?}");
            assert_eq!(bench.unread(), [""; 0], "{half:?}");
        }
    }
}

#[test]
fn who_lives_with_a_damaged_line_edits_the_others_at_once() {
    let mut bench = Bench::counted();
    bench.pve.put(106, "name: one\nnonsense\n").unwrap();
    bench.look();
    bench.now += WRITING;
    assert_eq!(bench.look(), ["believed 106.conf"]);
    bench.now += WRITING;
    bench.pve.put(106, "name: two\nnonsense\n").unwrap();
    assert_eq!(bench.look(), ["loaded 106 two"]);
    assert_eq!(bench.unread(), ["106.conf 10 believed"], "from when on it has been");
    bench.pve.remove(106).unwrap();
    bench.look();
    assert_eq!(bench.unread(), [""; 0]);
}

#[test]
fn a_placeholder_replaces_at_once() {
    let mut bench = Bench::counted();
    bench.pve.put(106, GOOD).unwrap();
    bench.look();
    bench.pve.put(106, "lock: destroyed\n").unwrap();
    assert_eq!(bench.look(), ["loaded 106 -"]);
    assert!(!bench.loader.known.vms[&VmId::new(106).unwrap()].record.ready);
}

#[test]
fn a_file_that_cannot_be_read_wipes_nothing_and_is_read_again() {
    let mut bench = Bench::counted();
    bench.pve.put(106, GOOD).unwrap();
    bench.look();
    let path = bench.pve.config(106);
    // As many bytes as no configuration has.
    bench.pve.put(106, &"#".repeat((1 << 20) + 1)).unwrap();
    assert_eq!(bench.look(), ["unusable 106"]);
    fs::remove_file(&path).unwrap();
    assert_eq!(bench.look(), ["unusable 106"], "another reason is told again");
    fs::create_dir(&path).unwrap();
    bench.now += Duration::from_secs(3600);
    assert_eq!(bench.look(), ["unusable 106"]);
    assert_eq!(bench.serves(), "good stale");
    assert_eq!(bench.unread(), ["106.conf 3600"], "from the first reason on");
    fs::remove_dir(&path).unwrap();
    fs::write(&path, "name: mended\n").unwrap();
    assert_eq!(bench.look(), ["loaded 106 mended"]);
    assert_eq!(bench.unread(), [""; 0]);
}

#[test]
fn what_is_not_wanted_any_more_is_not_missed() {
    let mut bench = Bench::counted();
    bench.pve.put(106, &"#".repeat((1 << 20) + 1)).unwrap();
    assert_eq!(bench.look(), ["unusable 106"]);
    assert_eq!((bench.serves().as_str(), bench.unread()), ("nothing", vec!["106.conf 0".to_owned()]));
    bench.pve.remove(106).unwrap();
    bench.look();
    assert_eq!(bench.unread(), [""; 0]);
}

#[test]
fn what_the_list_has_lost_is_forgotten_at_once() {
    let mut bench = Bench::counted();
    bench.pve.put(106, GOOD).unwrap();
    bench.pve.put(107, GOOD).unwrap();
    bench.look();
    bench.pve.remove(106).unwrap();
    bench.pve.make_container(107).unwrap();
    assert_eq!(bench.look(), ["forgotten 106", "forgotten 107"]);
    bench.pve.put(106, "name: reborn\n").unwrap();
    assert_eq!(bench.look(), ["loaded 106 reborn"]);
}

#[test]
fn what_a_walk_has_missed_is_forgotten_when_the_next_misses_it_too() {
    for pve in [PveTree::uncounted("pve1"), PveTree::plain("pve1")] {
        let mut bench = Bench::new(pve.unwrap());
        bench.pve.put(106, GOOD).unwrap();
        bench.look();
        bench.pve.remove(106).unwrap();
        assert_eq!(bench.look(), [""; 0]);
        assert_eq!(bench.serves(), "good stale");
        bench.pve.put(106, GOOD).unwrap();
        assert_eq!(bench.look(), [""; 0]);
        assert_eq!(bench.serves(), "good");
        bench.pve.remove(106).unwrap();
        bench.look();
        assert_eq!(bench.look(), ["forgotten 106"]);
        assert_eq!(bench.serves(), "nothing");
    }
}

#[test]
fn a_restart_of_the_file_system_loses_nothing_and_counts_anew() {
    let mut bench = Bench::counted();
    bench.pve.put(106, GOOD).unwrap();
    bench.look();
    let stopped = bench.pve.stop().unwrap();
    for _ in 0..3 {
        assert_eq!(bench.look(), ["failed"]);
    }
    assert_eq!(bench.serves(), "good");
    // Written while it was away; the new count happens to be the old one.
    bench.pve.start(&stopped).unwrap();
    fs::write(bench.pve.config(106), "name: other\n").unwrap();
    assert_eq!(bench.look(), ["loaded 106 other"]);
}

#[test]
fn an_empty_mount_point_with_directories_is_no_proof_once_there_was_a_list() {
    let mut bench = Bench::counted();
    bench.pve.put(106, GOOD).unwrap();
    bench.look();
    let _stopped = bench.pve.stop().unwrap();
    fs::create_dir_all(bench.pve.path().join("nodes/pve1/qemu-server")).unwrap();
    for _ in 0..3 {
        assert_eq!(bench.look(), ["failed"]);
    }
    assert_eq!(bench.serves(), "good");
}

#[test]
fn a_vm_is_in_the_pool_that_the_users_file_says() {
    let pool = |bench: &Bench, vmid| {
        let record = &bench.loader.known.vms[&VmId::new(vmid).unwrap()].record;
        record.pool.as_ref().map(ToString::to_string)
    };
    let mut bench = Bench::counted();
    bench.pve.put(106, GOOD).unwrap();
    bench.pve.put(107, GOOD).unwrap();
    bench.pve.put_file("user.cfg", "pool:a::106:\n").unwrap();
    assert_eq!(bench.look(), ["pooled 1 moved 0", "loaded 106 good", "loaded 107 good"]);
    assert_eq!((pool(&bench, 106).as_deref(), pool(&bench, 107)), (Some("a"), None));
    let files = bench.loader.progress.files();

    bench.pve.put_file("user.cfg", "pool:a::107,108:\npool:b::106:\n").unwrap();
    assert_eq!(bench.look(), ["pooled 3 moved 2"]);
    assert_eq!((pool(&bench, 106).as_deref(), pool(&bench, 107).as_deref()), (Some("b"), Some("a")));
    assert_eq!(bench.loader.progress.files(), files, "no VM's file is read for it");

    // A number that is given again starts where the file puts it, not where its last owner was.
    bench.pve.remove(107).unwrap();
    bench.pve.put_file("user.cfg", "pool:b::106:\n").unwrap();
    bench.pve.put(107, GOOD).unwrap();
    bench.look();
    assert_eq!(pool(&bench, 107), None);

    let file = bench.pve.path().join("user.cfg");
    bench.pve.put_file("user.cfg", "pool:c::106:\n").unwrap();
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_eq!(bench.look(), ["unread user.cfg"]);
    assert_eq!(bench.look(), [""; 0], "told once");
    assert_eq!(pool(&bench, 106).as_deref(), Some("b"));
    assert_eq!(bench.unread(), ["user.cfg 0"]);
    fs::remove_dir(&file).unwrap();
    fs::write(&file, "pool:c::106:\n").unwrap();
    assert_eq!(bench.look(), ["pooled 1 moved 1"]);
    assert_eq!(bench.unread(), [""; 0]);

    bench.pve.remove_file("user.cfg").unwrap();
    assert_eq!(bench.look(), ["unread user.cfg"]);
    assert_eq!(pool(&bench, 106).as_deref(), Some("c"));
    bench.now += WRITING;
    assert_eq!(bench.look(), ["pooled 0 moved 1", "believed user.cfg"]);
    assert_eq!(pool(&bench, 106), None);
    bench.now += WRITING;
    assert_eq!(bench.look(), [""; 0]);
    assert_eq!(bench.unread(), ["user.cfg 10 believed"]);
    bench.pve.put_file("user.cfg", "pool:c::106:\n").unwrap();
    assert_eq!(bench.look(), ["pooled 1 moved 1"]);
    assert_eq!(bench.unread(), [""; 0]);
}

/// Nobody's pool changes because a file is cut.
#[test]
fn pools_stay_while_their_file_may_be_being_written() {
    let whole = "user:root@pam:1:0::::::\n\n\npool:a::106:\npool:b::107:\n\n\nacl:1:/:root@pam:Administrator:\n";
    for (half, moved, lasts) in [
        ("", 1, true),
        ("user:root@pam:1:0::::::\n\n\npool:a::10", 1, true),
        ("user:root@pam:1:0::::::\n\n\n", 1, false),
        ("user:root@pam:1:0::::::\n\n\npool:a::106:\n", 0, false),
    ] {
        let mut bench = Bench::counted();
        bench.pve.put(106, GOOD).unwrap();
        bench.pve.put_file("user.cfg", whole).unwrap();
        bench.look();
        bench.pve.put_file("user.cfg", half).unwrap();
        assert_eq!(bench.look(), ["unread user.cfg"], "{half}");
        assert_eq!(bench.unread(), ["user.cfg 0"], "{half}");
        bench.now += WRITING;
        let events = bench.look();
        assert!(events[0].starts_with("pooled ") && events[0].ends_with(&format!(" moved {moved}")), "{events:?}");
        let told: &[&str] = if lasts { &["user.cfg 5 believed"] } else { &[] };
        assert_eq!(bench.unread(), told, "{half}");
    }
}

#[test]
fn what_tags_are_worth_is_read_where_it_is_counted_and_where_it_is_not() {
    for pve in [PveTree::cluster("pve1"), PveTree::uncounted("pve1"), PveTree::plain("pve1")] {
        let mut bench = Bench::new(pve.unwrap());
        assert_eq!(bench.look(), [""; 0]);
        bench.pve.put_file("datacenter.cfg", "registered-tags: a\n").unwrap();
        assert_eq!(bench.look(), ["settings [\"a\"]"]);
        bench.pve.put_file("datacenter.cfg", "registered-tags: b\n").unwrap();
        assert_eq!(bench.look(), ["settings [\"b\"]"]);
        assert_eq!(bench.look(), [""; 0]);
    }
}

#[test]
fn the_list_is_read_when_the_counts_say_that_it_is_another() {
    let mut bench = Bench::counted();
    bench.pve.put(106, GOOD).unwrap();
    bench.look();
    let list = bench.pve.path().join(".vmlist");
    let kept = fs::read(&list).unwrap();
    fs::write(&list, "not read").unwrap();
    assert_eq!(bench.look(), [""; 0]);
    // The counts are newer than the list: it is read until it has caught up, and never taken for what it is not.
    fs::write(bench.pve.path().join(".version"), r#"{"starttime":1000,"vmlist":2}"#).unwrap();
    assert_eq!(bench.look(), ["failed"]);
    fs::write(&list, &kept).unwrap();
    assert_eq!(bench.look(), [""; 0]);
    fs::write(bench.pve.config(106), "name: late\n").unwrap();
    fs::write(&list, r#"{"version":2,"ids":{"106":{"node":"pve1","type":"qemu","version":2}}}"#).unwrap();
    assert_eq!(bench.look(), ["loaded 106 late"]);
    fs::write(&list, "not read").unwrap();
    assert_eq!(bench.look(), [""; 0]);
}

/// Time this thread has spent on a processor.
fn worked() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

/// What `work` costs each time, on the average of as many as the kernel's book-keeping needs.
fn cost(times: u32, mut work: impl FnMut()) -> Duration {
    let before = worked();
    (0..times).for_each(|_| work());
    (worked() - before) / times
}

#[test]
fn two_thousand_vms_cost_a_poll_little() {
    let vms = 100..2100;
    let mut bench = Bench::counted();
    let config = |vmid| crate::testing::sample_config(VmId::new(vmid).unwrap(), "<!--#user-data\n#cloud-config\n-->");
    bench.pve.put_many(vms.clone().map(|vmid| (vmid, config(vmid)))).unwrap();
    assert_eq!(bench.look().len(), vms.len());
    let idle = cost(200, || assert!(bench.look().is_empty()));
    // The list is read and told to be another, and nothing else.
    let listed = cost(50, || {
        bench.loader.listing.version = Some(0);
        assert!(bench.look().is_empty());
    });
    eprintln!("2,000 VMs: a look at nothing new {idle:?}, with the list {listed:?}");
    // A millisecond is the aim; a program that is not optimised may take its time.
    assert!(idle < Duration::from_millis(if cfg!(debug_assertions) { 5 } else { 1 }), "{idle:?}");
}
