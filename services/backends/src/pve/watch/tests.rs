use std::time::Duration;

use pve_imds_model::request::{Directory, Link, UnknownCaller};
use pve_imds_model::tap::TapName;
use tokio::time::timeout;

use super::super::inventory::Signing;
use super::super::overheard::overhear;
use super::super::pace::READ_LIMIT;
use super::*;
use crate::testing::{PveTree, sample_config};

/// How soon a change is served when inotify tells of it, and when nothing does.
const WITH_EVENT: Duration = Duration::from_millis(250);
const WITHOUT_EVENT: Duration = Duration::from_secs(2);

/// A poll that never comes.
const NEVER: Duration = Duration::from_secs(3600);

fn id(vmid: u32) -> VmId {
    VmId::new(vmid).unwrap()
}

fn config(name: &str) -> String {
    format!("name: {name}\nnet0: virtio=BC:24:11:00:00:01,bridge=vmbr0\n")
}

fn name(inventory: &Inventory, vmid: u32) -> Option<String> {
    inventory.vm(id(vmid)).map(|record| record.vm.name.clone().unwrap_or_default())
}

/// How long it takes until `condition` holds.
async fn until(inventory: &Inventory, mut condition: impl FnMut(&Inventory) -> bool) -> Duration {
    let start = Instant::now();
    let mut changes = inventory.changes();
    let wait = async {
        while !condition(inventory) {
            changes.changed().await.unwrap();
        }
    };
    timeout(WITHOUT_EVENT, wait).await.expect("the change is not served");
    start.elapsed()
}

/// Every way in which a configuration changes, and how long each takes to be served.
async fn changes(mut pve: PveTree, settings: Settings) -> Vec<Duration> {
    let mut took = Vec::new();
    pve.put(106, &config("a")).unwrap();
    let (inventory, _watcher) = Inventory::open(settings).unwrap();
    assert_eq!(name(&inventory, 106).as_deref(), Some("a"), "the first look ends before the inventory is given out");
    assert!(!inventory.is_stale());

    pve.put(106, &config("b")).unwrap();
    took.push(until(&inventory, |it| name(it, 106).as_deref() == Some("b")).await);
    pve.put_in_place(106, &config("c")).unwrap();
    took.push(until(&inventory, |it| name(it, 106).as_deref() == Some("c")).await);
    pve.put(107, &config("d")).unwrap();
    took.push(until(&inventory, |it| name(it, 107).as_deref() == Some("d")).await);
    pve.remove(107).unwrap();
    took.push(until(&inventory, |it| name(it, 107).is_none()).await);
    took
}

#[tokio::test]
async fn a_change_through_this_node_is_served_at_once() {
    for pve in [PveTree::cluster("pve1"), PveTree::uncounted("pve1"), PveTree::plain("pve1")] {
        let pve = pve.unwrap();
        let settings = Settings { poll: NEVER, ..pve.settings() };
        let mut took = changes(pve, settings).await;
        took.sort_unstable();
        // The median, because a busy machine may keep any one of them waiting.
        assert!(took[took.len() / 2] < WITH_EVENT, "{took:?}");
    }
}

#[tokio::test]
async fn a_change_that_nothing_tells_of_is_served_by_the_poll() {
    for pve in [PveTree::cluster("pve1"), PveTree::uncounted("pve1")] {
        let pve = pve.unwrap();
        let settings = Settings { events: false, ..pve.settings() };
        assert_eq!(settings.poll, Duration::from_millis(500));
        let took = changes(pve, settings).await;
        assert!(took.iter().all(|took| *took < WITHOUT_EVENT), "{took:?}");
    }
}

#[tokio::test]
async fn a_change_of_pools_and_settings_is_told_of_like_one_of_a_vm() {
    for (poll, events) in [(NEVER, true), (Settings::default().poll, false)] {
        let mut pve = PveTree::cluster("pve1").unwrap();
        pve.put(106, &config("a")).unwrap();
        let (inventory, _watcher) = Inventory::open(Settings { poll, events, ..pve.settings() }).unwrap();
        assert_eq!((inventory.pools().of(id(106)), inventory.vm(id(106)).unwrap().pool), (None, None));
        pve.put_file("user.cfg", "pool:db::106:\n").unwrap();
        until(&inventory, |it| it.vm(id(106)).is_some_and(|record| record.pool.is_some())).await;
        assert_eq!(inventory.pools().of(id(106)).map(ToString::to_string).as_deref(), Some("db"));
        pve.put_file("datacenter.cfg", "registered-tags: a\n").unwrap();
        until(&inventory, |it| it.datacenter().registered_tags == ["a"]).await;
    }
}

#[tokio::test]
async fn what_goes_to_another_node_is_followed_there() {
    let mut pve = PveTree::cluster("pve1").unwrap();
    pve.put(106, &config("a")).unwrap();
    let (inventory, _watcher) = Inventory::open(Settings { poll: NEVER, ..pve.settings() }).unwrap();
    pve.migrate(106, "pve2").unwrap();
    until(&inventory, |it| it.vm(id(106)).is_some_and(|record| *record.owner == *"pve2")).await;
    pve.put(106, &config("b")).unwrap();
    until(&inventory, |it| name(it, 106).as_deref() == Some("b")).await;
}

#[tokio::test]
async fn a_directory_that_is_missing_is_waited_for() {
    let mut pve = PveTree::cluster("pve1").unwrap();
    pve.put(106, &config("a")).unwrap();
    let stopped = pve.stop().unwrap();
    let (inventory, _watcher) = Inventory::open(pve.settings()).unwrap();
    assert!(inventory.is_stale());
    assert!(inventory.records().is_empty());
    let link = Link { tap: TapName::parse("tap106i0").unwrap(), index: 7, since: 0 };
    assert_eq!(inventory.find(link), Err(UnknownCaller::NoList));
    pve.start(&stopped).unwrap();
    until(&inventory, |it| !it.is_stale()).await;
    assert_eq!(inventory.find(link).unwrap().name.as_deref(), Some("a"));
}

#[tokio::test]
async fn what_could_never_be_read_has_its_reason_until_it_can() {
    let mut pve = PveTree::cluster("pve1").unwrap();
    pve.put(106, &config("a")).unwrap();
    let path = pve.config(106);
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let (inventory, _watcher) = Inventory::open(pve.settings()).unwrap();
    let why = format!("{} is not a regular file", path.display());
    assert_eq!(inventory.why_unknown(id(106)), UnknownCaller::Unreadable(why.into()));
    assert_eq!(inventory.why_unknown(id(107)), UnknownCaller::NoConfig);
    std::fs::remove_dir(&path).unwrap();
    pve.put(106, &config("b")).unwrap();
    until(&inventory, |it| name(it, 106).as_deref() == Some("b")).await;
    assert_eq!(inventory.vm(id(106)).unwrap().path.as_ref(), path);
}

#[tokio::test]
async fn a_file_system_that_goes_leaves_the_last_good_state() {
    let mut pve = PveTree::cluster("pve1").unwrap();
    pve.put(106, &config("a")).unwrap();
    let (inventory, _watcher) = Inventory::open(pve.settings()).unwrap();
    let stopped = pve.stop().unwrap();
    until(&inventory, Inventory::is_stale).await;
    assert_eq!(name(&inventory, 106).as_deref(), Some("a"));
    pve.start(&stopped).unwrap();
    until(&inventory, |it| !it.is_stale()).await;
}

#[tokio::test]
async fn both_threads_end_with_the_watcher() {
    let pve = PveTree::cluster("pve1").unwrap();
    let (inventory, watcher) = Inventory::open(pve.settings()).unwrap();
    assert_eq!(Arc::strong_count(&inventory), 3);
    drop(watcher);
    let ended = async {
        while Arc::strong_count(&inventory) > 1 {
            tokio::task::yield_now().await;
        }
    };
    timeout(WITHOUT_EVENT, ended).await.expect("a thread goes on");
}

/// The waiting thread with a worker that never comes back: the test plays its part.
#[tokio::test]
async fn a_mount_that_hangs_holds_one_look_and_nobody_else() {
    let inventory = Arc::new(Inventory::empty());
    inventory.set_stale(None);
    let (wake, wakes) = channel();
    let (order, orders) = channel();
    let (ready, opened) = channel::<()>();
    let pace = Pace::new(Duration::from_millis(10), Instant::now());
    let waiter = Waiter { pace, progress: Arc::default(), inventory: Arc::clone(&inventory) };
    let thread = thread::spawn(move || waiter.run(&wakes, &order, ready));

    let start = Instant::now();
    assert_eq!(orders.recv().unwrap(), BTreeSet::new());
    assert!(opened.recv().is_err(), "whoever opens the inventory is let go");
    assert!(inventory.is_stale());
    assert!(start.elapsed() >= READ_LIMIT);
    wake.send(Wake::Touched(VmId::new(106))).unwrap();
    assert!(orders.recv_timeout(Duration::from_millis(100)).is_err(), "one look at a time");

    wake.send(Wake::Looked { failed: None, unsettled: false }).unwrap();
    assert_eq!(orders.recv().unwrap(), BTreeSet::from([id(106)]));
    assert!(!inventory.is_stale());
    wake.send(Wake::Stop).unwrap();
    thread.join().unwrap();
}

/// Looks once, on this thread, and says what was logged and counted.
fn look_once(pve: &PveTree) -> (String, Vec<String>) {
    let inventory = Arc::new(Inventory::empty());
    let loader = Loader::new(Tree::new(pve.path().to_owned(), "pve1"), Arc::default());
    let dir = pve.path().to_owned();
    let resolv_conf = "/nonexistent".into();
    let worker = Worker {
        keyring: Keyring::new("pvetest", Signing::default(), inventory.keys().clone(), inventory.token_keys().clone()),
        dir,
        resolv_conf,
        loader,
        pair: None,
        hints: None,
        inventory: Arc::clone(&inventory),
        progress: Arc::default(),
        first: true,
        failing: false,
    };
    let (order, orders) = channel();
    order.send(BTreeSet::new()).unwrap();
    drop(order);
    let (report, _reports) = channel();
    let (log, meters) = overhear(|| {
        worker.run(&orders, &report);
        metrics::stands(&inventory);
    });
    (log.join("\n"), meters)
}

#[test]
fn the_log_names_vm_owner_and_line_and_nothing_that_is_written_there() {
    let mut pve = PveTree::cluster("pve1").unwrap();
    let notes = "<!--#user-data secret=canary\ncanary\n-->\n<!--#network-config\ncanary: 3\n-->\n<!--#imds\ncanary: 1\n-->\ncanary";
    let lines = "canary\nboot: canary=\nipconfig9: ip=dhcp\nsshkeys: canary\n";
    pve.put(106, &format!("{}{lines}", sample_config(id(106), notes))).unwrap();
    let (log, _) = look_once(&pve);
    for said in [
        "vmid=106 owner=pve1 digest=",
        "WARN message=line of the configuration not used vmid=106 line=16 ",
        "WARN message=line of the configuration doubted vmid=106 line=18 column=12 reason=`ipconfig9`: there is no `net9`",
        "WARN message=line of the configuration doubted vmid=106 line=19 column=10 reason=`sshkeys`: key 1: ",
        "vmid=106 block=\"user-data\" outcome=notes_invalid ",
        "reason=unknown attribute `secret` on the opening line",
        "vmid=106 block=\"network-config\" line=",
        "vmid=106 block=\"imds\" outcome=policy_invalid ",
        "vms=1",
    ] {
        assert!(log.contains(said), "{said} is not in\n{log}");
    }
    assert!(!log.contains("canary"), "{log}");
}

#[test]
fn looks_and_vms_are_counted() {
    let mut pve = PveTree::cluster("pve1").unwrap();
    pve.put(106, &config("a")).unwrap();
    // The worker alone vouches for nothing: fresh is what the waiting thread has seen it come back from.
    assert_eq!(
        look_once(&pve).1,
        [
            "pve_imds_identity_signing{} 0",
            "pve_imds_inventory_reloads_total{result=changed} 1",
            "pve_imds_inventory_stale{} 1",
            "pve_imds_inventory_unreadable{} 0",
            "pve_imds_inventory_vms{} 1",
        ]
    );
    pve.put(107, &"#".repeat((1 << 20) + 1)).unwrap();
    let (_, meters) = look_once(&pve);
    assert_eq!(meters[1], "pve_imds_inventory_reloads_total{result=incomplete} 1");
    assert_eq!(meters[3], "pve_imds_inventory_unreadable{} 1");
    let _stopped = pve.stop().unwrap();
    assert_eq!(look_once(&pve).1[1], "pve_imds_inventory_reloads_total{result=failed} 1");
}
