//! The configuration section `cache = { size = "512MiB", of = … }`: how much memory to use, and how much to read
//! ahead.

use std::{
    ops::Range,
    rc::Rc,
    sync::{Arc, OnceLock},
};

use engine::LaneFuture;
use serde::Deserialize;
use toml::Spanned;

use super::{
    CacheConfig, CacheHandle,
    resize::{OpenCache, Resize},
};
use crate::{
    Error, ErrorKind, Result,
    kinds::{
        Node, Settings, VolumeIdentity,
        change::{Change, Changing, Step},
    },
    part::{Opening, Part},
    values::{ConfigError, Size},
};

/// The smallest size, one page of cached data.
const SIZE_BYTES_MIN: u64 = 4096;

/// `cache = { size = "512MiB", of = … }`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// The memory that it may use.
    pub size: Spanned<Size>,
    /// The most to read ahead of a sequential run; "0B" disables it. If omitted, the cache chooses.
    pub read_ahead: Option<Spanned<Size>>,
    /// The user's assurance that nobody else ever writes to what is cached.
    #[serde(default)]
    pub only_writer: bool,
    /// What is cached.
    pub of: Node,
}

impl Cache {
    fn config(&self) -> CacheConfig {
        let defaults = CacheConfig::default();
        let read_ahead = self.read_ahead.as_ref().map(|size| size.get_ref().bytes());
        CacheConfig {
            size_bytes: self.size.get_ref().bytes(),
            read_ahead_max_bytes: read_ahead.unwrap_or(defaults.read_ahead_max_bytes),
            ..defaults
        }
    }
}

impl Settings for Cache {
    fn open<'a>(&'a self, mut opening: Opening<'a>) -> LaneFuture<'a, Result<Arc<Part>>> {
        let config = self.config();
        let counters: CacheHandle = opening.handle();
        LaneFuture::new(async move {
            if self.needs_only_writer() && opening.children().iter().any(|part| part.is_shared()) {
                return Err(Error::new(
                    ErrorKind::Configuration,
                    format!(
                        "nothing keeps others from writing to {} or reports their writes, so the \
                         cache could serve stale data; set only_writer = true in the cache if \
                         nobody else ever writes there, or remove the cache",
                        self.of.describe()
                    ),
                ));
            }
            let claims = opening.children().iter().flat_map(|part| part.claims());
            let claims: Vec<_> = claims.collect();
            let (home, kept) = (opening.lanes[0].clone(), Arc::new(OnceLock::new()));
            let keep = kept.clone();
            let part = opening
                .layer_at_home(move |inner| {
                    let cache = super::Cache::counted(inner, &config, &counters, claims)?;
                    let _ = keep.set(OpenCache::keep(home, &cache));
                    Ok(Rc::new(cache))
                })
                .await?;
            if let Some(open) = kept.get() {
                opening.put(open.clone());
            }
            Ok(part)
        })
    }

    fn identity(&self) -> VolumeIdentity<'_> {
        VolumeIdentity::Child(&self.of)
    }

    fn is_volatile(&self) -> bool {
        false
    }

    fn change(&self, new: &Cache) -> Change {
        let resized = Cache {
            size: new.size.clone(),
            read_ahead: new.read_ahead.clone(),
            ..self.clone()
        };
        let ahead = |cache: &Cache| match &cache.read_ahead {
            Some(size) => size.get_ref().to_string(),
            None => "(not set)".to_owned(),
        };
        let mut made = Vec::new();
        if self.size != new.size {
            let (was, is) = (self.size.get_ref(), new.size.get_ref());
            made.push(format!("its cache's size {was} → {is}"));
        }
        if self.read_ahead != new.read_ahead {
            made.push(format!(
                "its cache's read_ahead {} → {}",
                ahead(self),
                ahead(new)
            ));
        }
        match (resized == *new, made.is_empty()) {
            (false, _) => Change::between(self, new),
            (true, true) => Change::None,
            (true, false) => Change::Live(made),
        }
    }

    fn step<'a>(&'a self, changing: Changing<'a>) -> LaneFuture<'a, Result<Box<dyn Step>>> {
        let open = changing.handle::<OpenCache>().cloned();
        let step = open.map(|open| Box::new(Resize::new(open, self.config())) as _);
        let error = || Error::new(ErrorKind::Unreachable, "it is not open");
        LaneFuture::new(async move { step.ok_or_else(error) })
    }

    fn over(&self, other: &Cache) -> Cache {
        Cache {
            of: other.of.clone(),
            ..self.clone()
        }
    }

    fn children(&self) -> &[Node] {
        std::slice::from_ref(&self.of)
    }

    fn check(&self) -> std::result::Result<(), ConfigError> {
        let size = self.size.get_ref();
        if size.bytes() < SIZE_BYTES_MIN {
            return Err(ConfigError::at(
                &self.size,
                format!("a cache of {size} is too small; write 64MiB or more"),
            ));
        }
        match &self.read_ahead {
            Some(ahead) if ahead.get_ref() > size => Err(ConfigError::at(
                ahead,
                format!(
                    "a read_ahead of {} does not fit into the cache of {size}; write a smaller one",
                    ahead.get_ref()
                ),
            )),
            _ => Ok(()),
        }
    }

    fn needs_only_writer(&self) -> bool {
        !self.only_writer
    }

    fn span(&self) -> Option<Range<usize>> {
        Some(self.size.span())
    }

    fn memory(&self) -> Option<&Spanned<Size>> {
        Some(&self.size)
    }
}
