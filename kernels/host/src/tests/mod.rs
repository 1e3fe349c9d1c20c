mod address_space;
mod computing;
mod describing;
mod hostile;
mod opening;
mod other_languages;
mod scalar;
mod textual;
mod zoo;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use omnilearn_wire::message::{Setting, SettingValue};

use crate::Kernel;

/// Where `cargo xtask kernels` puts a kernel.
fn component_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../target/components/{name}.wasm"))
}

/// The bytes of one of the kernels.
fn component(name: &str) -> Vec<u8> {
    let path = component_path(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}: run `cargo xtask kernels`", path.display()))
}

/// One of the kernels, compiled once for all tests of a process.
fn kernel(name: &'static str) -> Kernel {
    static OPENED: Mutex<BTreeMap<&str, Kernel>> = Mutex::new(BTreeMap::new());
    OPENED.lock().unwrap().entry(name).or_insert_with(|| Kernel::open(&component(name)).unwrap()).clone()
}

fn setting(name: &str, value: SettingValue) -> Setting {
    Setting { name: name.to_owned(), value }
}

fn integer(name: &str, value: i64) -> Setting {
    setting(name, SettingValue::Integer(value))
}
