//! Opening a component: every check that needs no execution.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use omnilearn_wire::limits::{KERNEL_BYTES_MAX, cut_reason};
use omnilearn_wire::message::Setting;
use sha2::{Digest, Sha256};
use wasmtime::component::{Component, HasSelf, Linker};

use crate::backend::TensorBackend;
use crate::bindings::{self, KernelPre};
use crate::cache;
use crate::description::Description;
use crate::engine::engine;
use crate::error::KernelError;
use crate::instance::Instance;
use crate::limits::Limits;
use crate::no_tensors::NoTensors;
use crate::settings::SettingInfo;
use crate::state::State;

/// First bytes of a component, as opposed to a module.
const COMPONENT_MAGIC: &[u8; 8] = b"\0asm\x0d\x00\x01\x00";
const TENSOR_INTERFACE: &str = "omnilearn:kernel/tensor";
const MODEL_INTERFACE: &str = "omnilearn:kernel/model";
/// Every patch of this version fits.
const INTERFACE_VERSION: &str = "0.1.";

/// Why bytes are not a kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Larger than any kernel may be.
    #[error("component has {bytes} bytes, at most {KERNEL_BYTES_MAX} allowed")]
    TooLarge {
        /// Its size.
        bytes: u64,
    },
    /// Something else, such as a core module, text or an executable.
    #[error("this is not a WebAssembly component")]
    NotComponent,
    /// A component that is damaged or uses what the engine does not offer.
    #[error("component is invalid: {message}")]
    Invalid {
        /// The engine's words.
        message: String,
    },
    /// It asks for more than tensors.
    #[error("component imports `{name}`, but a kernel may import only `omnilearn:kernel/tensor@0.1`")]
    ForeignImport {
        /// The import.
        name: String,
    },
    /// It is no model.
    #[error("component does not export `omnilearn:kernel/model@0.1`")]
    NoModel,
    /// It imports or exports the right interfaces with other functions or types than this version has.
    #[error("component is made for another kernel interface: {message}")]
    Interface {
        /// The engine's words.
        message: String,
    },
    /// This machine cannot run WebAssembly.
    #[error("webassembly engine: {message}")]
    Engine {
        /// The engine's words.
        message: String,
    },
}

/// A checked and compiled component. Cloning is cheap.
#[derive(Clone)]
pub struct Kernel(Arc<Inner>);

struct Inner {
    component: Component,
    digest: [u8; 32],
}

impl Kernel {
    /// Checks and compiles a component.
    ///
    /// # Errors
    /// [`OpenError`], whatever the bytes are.
    pub fn open(bytes: &[u8]) -> Result<Kernel, OpenError> {
        Kernel::open_with(bytes, |engine, _| Component::from_binary(engine, bytes))
    }

    /// As [`Kernel::open`], but keeps the compiled code in a folder and takes it from there the next time. An entry of
    /// another engine version, other settings or another CPU, or a damaged one, is replaced. A folder that cannot be
    /// written costs only time.
    ///
    /// Whoever writes there decides what this process executes, so the folder is made for its owner alone, and entries that
    /// another user could have written are not loaded.
    ///
    /// # Errors
    /// [`OpenError`], whatever the bytes are.
    pub fn open_cached(bytes: &[u8], folder: &Path) -> Result<Kernel, OpenError> {
        Kernel::open_with(bytes, |engine, digest| cache::load_or_compile(engine, bytes, digest, folder))
    }

    fn open_with(
        bytes: &[u8],
        load: impl FnOnce(&wasmtime::Engine, &[u8; 32]) -> wasmtime::Result<Component>,
    ) -> Result<Kernel, OpenError> {
        if bytes.len() as u64 > KERNEL_BYTES_MAX {
            return Err(OpenError::TooLarge { bytes: bytes.len() as u64 });
        }
        if !bytes.starts_with(COMPONENT_MAGIC) {
            return Err(OpenError::NotComponent);
        }
        let engine = engine().map_err(|message| OpenError::Engine { message: message.to_owned() })?;
        let digest = Sha256::digest(bytes).into();
        let component = load(engine, &digest).map_err(|error| OpenError::Invalid { message: words(&error) })?;
        check_interfaces(engine, &component)?;
        let kernel = Kernel(Arc::new(Inner { component, digest }));
        kernel.link::<NoTensors>().map_err(|error| OpenError::Interface { message: words(&error) })?;
        Ok(kernel)
    }

    /// SHA-256 of the component.
    pub fn digest(&self) -> &[u8; 32] {
        &self.0.digest
    }

    /// Names of everything that the component imports, in its order.
    pub fn imports(&self) -> Vec<String> {
        let component = &self.0.component;
        component.component_type().imports(component.engine()).map(|(name, _)| name.to_owned()).collect()
    }

    /// The settings that the kernel understands.
    ///
    /// # Errors
    /// [`KernelError`] if the kernel fails to tell.
    pub fn settings(&self) -> Result<Vec<SettingInfo>, KernelError> {
        self.instantiate(NoTensors, Limits::default())?.settings()
    }

    /// What the kernel trains under these settings, without a backend.
    ///
    /// # Errors
    /// As [`Instance::describe`].
    pub fn describe(&self, settings: &[Setting]) -> Result<Description, KernelError> {
        self.instantiate(NoTensors, Limits::default())?.describe(settings)
    }

    /// Makes an instance that computes on `backend`.
    ///
    /// # Errors
    /// [`KernelError`] if the kernel fails to start within its limits.
    pub fn instantiate<B: TensorBackend>(&self, backend: B, limits: Limits) -> Result<Instance<B>, KernelError> {
        Instance::new(self.clone(), backend, limits)
    }

    pub(crate) fn link<B: TensorBackend>(&self) -> wasmtime::Result<KernelPre<State<B>>> {
        let mut linker = Linker::new(self.0.component.engine());
        bindings::Kernel::add_to_linker::<_, HasSelf<_>>(&mut linker, |state: &mut State<B>| state)?;
        KernelPre::new(linker.instantiate_pre(&self.0.component)?)
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kernel(")?;
        self.0.digest.iter().take(6).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

fn words(error: &wasmtime::Error) -> String {
    cut_reason(format!("{error:#}"))
}

/// Whether a name is this interface in a version that fits.
fn is_interface(name: &str, interface: &str) -> bool {
    let version = name.strip_prefix(interface).and_then(|rest| rest.strip_prefix('@'));
    let patch = version.and_then(|version| version.strip_prefix(INTERFACE_VERSION));
    patch.is_some_and(|patch| !patch.is_empty() && patch.bytes().all(|byte| byte.is_ascii_digit()))
}

fn check_interfaces(engine: &wasmtime::Engine, component: &Component) -> Result<(), OpenError> {
    let types = component.component_type();
    if let Some((name, _)) = types.imports(engine).find(|(name, _)| !is_interface(name, TENSOR_INTERFACE)) {
        return Err(OpenError::ForeignImport { name: cut_reason(name.to_owned()) });
    }
    if !types.exports(engine).any(|(name, _)| is_interface(name, MODEL_INTERFACE)) {
        return Err(OpenError::NoModel);
    }
    Ok(())
}
