"""StableHLO and JAX programs: text, bytecode or a jitted function, as an `OpGraph`.

Reading needs the `jax` extra (jaxlib's own MLIR bindings); nothing is compiled or run.
"""
