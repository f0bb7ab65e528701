//! Compiles the kernel programs with clang. Nothing binary is kept in the repository, and no Rust toolchain of today
//! builds BPF without a nightly compiler, so they are C.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

/// One object each: the guard is attached without the daemon too, and then needs nothing that the funnel needs. The
/// third is the yardstick of `examples/cost.rs`.
const OBJECTS: [&str; 3] = ["guard", "funnel", "empty"];

fn main() {
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    for object in OBJECTS {
        if let Err(why) = compile(&clang, object, &out) {
            for line in why.lines() {
                println!("cargo::error={line}");
            }
            exit(1);
        }
    }
}

fn compile(clang: &str, object: &str, out: &Path) -> Result<(), String> {
    let done = Command::new(clang)
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra"])
        .args(multiarch().iter().map(|dir| format!("-I{dir}")))
        .arg("-c")
        .arg(format!("c/{object}.bpf.c"))
        .arg("-o")
        .arg(out.join(format!("{object}.bpf.o")))
        .output()
        .map_err(|why| format!("cannot run `{clang}` ({why}): `apt install clang`, or name another in CLANG"))?;
    let said = String::from_utf8_lossy(&done.stderr);
    if done.status.success() {
        for line in said.lines() {
            println!("cargo::warning={line}");
        }
        return Ok(());
    }
    let advice = [
        ("bpf/bpf_helpers.h' file not found", "`apt install libbpf-dev` for the BPF helpers"),
        ("bpf/bpf_endian.h' file not found", "`apt install libbpf-dev` for the BPF helpers"),
        ("file not found", "`apt install linux-libc-dev libc6-dev` for the kernel's headers"),
        ("unable to create target", "this clang has no BPF target: `apt install clang llvm`"),
    ];
    let advice = advice.iter().find(|(sign, _)| said.contains(sign)).map_or("", |(_, advice)| advice);
    Err(format!("clang could not compile {object}.bpf.c. {advice}\n{said}"))
}

/// Debian keeps `asm/types.h` per architecture, and clang looks there for no target but the host's.
fn multiarch() -> Option<String> {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").ok()?;
    let dir = format!("/usr/include/{arch}-linux-gnu");
    Path::new(&dir).is_dir().then_some(dir)
}
