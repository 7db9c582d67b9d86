"""Sharding annotations, and a program of many devices as one of them runs it."""

import pytest

from predictor.capture.stablehlo.sharding import Mesh

pytest.importorskip("jax", reason="JAX programs need the jax extra")

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import predictor

MESH = AbstractMesh((4, 2), ("data", "model"))


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        ('#sdy.sharding<@mesh, [{"data"}, {}]>', (4, 1)),
        ('#sdy.sharding<@mesh, [{}, {"data", "model"}]>', (1, 8)),
        ('#sdy.sharding<@mesh, [{"model", ?}, {?}]>', (2, 1)),
        ('#sdy.sharding<@mesh, [{"data":(1)2}, {"data":(2)2}]>', (2, 2)),
        ("{devices=[4,1]<=[4]}", (4, 1)),
        ("{devices=[2,4]<=[8]}", (2, 4)),
        ("{devices=[2,1,4]<=[8] last_tile_dim_replicate}", (2, 1)),
        ("{devices=[2,4]<=[4,2]T(1,0)}", (2, 4)),
        ("{devices=[1,4]0,1,2,3}", (1, 4)),
        ("{replicated}", (1, 1)),
    ],
)
def test_annotations(text, ways):
    mesh = Mesh({"mesh": {"data": 4, "model": 2}})
    split = mesh.split(text, 2)
    assert split is not None
    assert tuple(mesh.count(axes) for axes in split) == ways


def test_numbered_axes_of_one_device_order_are_the_same():
    mesh = Mesh({})
    rows, columns = (mesh.split(t, 2) for t in ("{devices=[4,1]<=[4]}", "{devices=[1,4]<=[4]}"))
    assert rows[0] == columns[1]


def _graph(run, *arguments):
    specs = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(MESH, PartitionSpec(*axes)))
        for shape, axes in arguments
    ]
    return predictor.capture(jax.jit(run), *specs)


def _ops(graph):
    return [(n.op.removeprefix("stablehlo."), n.outputs[0].shape) for n in graph.nodes if n.outputs]


def test_a_product_over_a_split_side_is_summed_over_its_devices():
    graph = _graph(lambda x, w: x @ w, ((32, 64), ("data", "model")), ((64, 128), ("model", None)))
    assert _ops(graph) == [("dot_general", (8, 128)), ("all_reduce", (8, 128))]
    assert graph.nodes[0].inputs[0].shape == (8, 32)
    assert graph.nodes[1].attrs["replica_groups"] == [1, 2]


def test_a_weight_that_lies_in_shards_is_gathered():
    graph = _graph(lambda x, w: x @ w, ((4096, 64), ("data",)), ((64, 128), ("data", None)))
    assert _ops(graph) == [("all_gather", (64, 128)), ("dot_general", (1024, 128))]


def test_splits_go_through_reshapes_and_transposes():
    def run(x):
        return jnp.tanh(x.reshape(8, 4, 16, 2).transpose(0, 2, 1, 3))

    graph = _graph(run, ((32, 32), ("data", None)))
    assert graph.nodes[-1].outputs[0].shape == (2, 16, 4, 2)
    assert not [n for n in graph.nodes if "all" in n.op]


def test_stacked_layers_gather_and_reduce_every_iteration():
    def loss(p, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, p)[0].sum()

    graph = _graph(jax.grad(loss), ((5, 64, 64), (None, "data")), ((4096, 64), ("data",)))
    exchanged = {
        n.op: n.attrs.get("trips") for n in graph.nodes if n.op.endswith(("gather", "scatter"))
    }
    assert exchanged == {"stablehlo.all_gather": 5, "stablehlo.reduce_scatter": 5}
    assert graph.workload.parameters == 5 * 16 * 64


def test_constraints_of_the_program_are_followed():
    def run(x):
        y = jnp.tanh(x)
        return jnp.exp(
            jax.lax.with_sharding_constraint(y, NamedSharding(MESH, PartitionSpec(None, "data")))
        )

    graph = _graph(run, ((32, 64), ("data", None)))
    assert graph.nodes[-1].outputs[0].shape == (32, 16)
    assert [n.op for n in graph.nodes if "all_to_all" in n.op]


def test_what_a_program_fills_is_cut_like_what_it_meets():
    graph = _graph(lambda x: x + jnp.arange(64.0), ((32, 64), ("data", "model")))
    assert graph.nodes[-1].outputs[0].shape == (8, 32)


def test_mapped_regions_are_taken_as_they_are():
    def run(w, x):
        return jax.lax.psum(jnp.tanh(x @ w), "model")

    mapped = jax.shard_map(
        run, mesh=MESH, in_specs=(PartitionSpec(None, "model"), PartitionSpec("data", None)),
        out_specs=PartitionSpec("data", None), check_vma=False,
    )  # fmt: skip
    w, x = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((64, 128), (32, 64)))
    graph = predictor.capture(jax.jit(mapped), w, x)
    assert _ops(graph) == [
        ("dot_general", (8, 64)), ("tanh", (8, 64)), ("all_reduce", (8, 64)),
    ]  # fmt: skip


def _exchanges(graph):
    return [
        (n.op.removeprefix("stablehlo."), n.outputs[0].shape, n.attrs.get("trips", 1))
        for n in graph.nodes
        if "replica_groups" in n.attrs
    ]


def _split(*axes):
    return NamedSharding(MESH, PartitionSpec(*axes))


@pytest.mark.parametrize(
    ("given", "asked", "exchanges"),
    [
        (("data", None), (), [("all_gather", (1024, 512), 1)]),
        (("data", None), (None, "data"), [("all_to_all", (1024, 128), 1)]),
        ((None, None), ("data", None), []),
        (("data", None), ("data", None), []),
        (("data", "model"), ("data", None), [("all_gather", (256, 512), 1)]),
    ],
)
def test_results_are_moved_to_where_the_program_wants_them(given, asked, exchanges):
    run = jax.jit(jnp.tanh, out_shardings=_split(*asked))
    x = jax.ShapeDtypeStruct((1024, 512), jnp.float32, sharding=_split(*given))
    assert _exchanges(predictor.capture(run, x)) == exchanges


def test_results_of_which_nothing_is_said_stay_where_they_are():
    assert _exchanges(_graph(jnp.tanh, ((1024, 512), ("data", None)))) == []


def test_a_sum_goes_to_the_shards_that_are_asked_for():
    run = jax.jit(lambda x, w: x @ w, out_shardings=_split("data", "model"))
    x, w = (
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=_split(*axes))
        for shape, axes in (((1024, 512), ("data", "model")), ((512, 512), ("model", None)))
    )
    assert _exchanges(predictor.capture(run, x, w)) == [("reduce_scatter", (256, 256), 1)]


def test_what_a_loop_carries_is_moved_every_time_where_its_body_turns_it():
    def run(x, w):
        def step(c, _):
            turned = jax.lax.with_sharding_constraint(jnp.tanh(c @ w), _split(None, "data"))
            return turned, None

        return jax.lax.scan(step, x, None, length=6)[0]

    graph = _graph(run, ((1024, 512), ("data", None)), ((512, 512), ()))
    assert _exchanges(graph) == [("all_to_all", (1024, 128), 6), ("all_to_all", (256, 512), 6)]


def test_what_a_loop_carries_lies_as_its_body_gives_it():
    def run(h, w):
        return jax.lax.scan(lambda c, wi: (jnp.tanh(c @ wi), None), h, w)[0]

    graph = _graph(run, ((1024, 512), ("data", None)), ((6, 512, 512), (None, None, "model")))
    assert _exchanges(graph) == [("all_gather", (256, 512), 6)]  # as XLA's partitioner has it
    (product,) = (n for n in graph.nodes if n.op == "stablehlo.dot_general")
    assert product.outputs[0].shape == (256, 256)


@pytest.mark.parametrize(
    ("window", "stride", "made", "edges"),
    [(3, 1, 16, [1, 1]), (3, 2, 8, [1]), (5, 1, 16, [2, 2]), (1, 1, 16, [])],
)
def test_a_convolution_over_parts_of_an_image_exchanges_its_borders(window, stride, made, edges):
    def run(x, k):
        return jax.lax.conv_general_dilated(
            x, k, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    graph = _graph(
        run, ((8, 64, 64, 32), (None, "data", None, None)), ((window, window, 32, 32), ())
    )
    assert _exchanges(graph) == [("collective_permute", (8, e, 64, 32), 1) for e in edges]
    assert graph.nodes[-1].outputs[0].shape[1] == made


def test_gradients_of_a_convolution_over_parts_of_an_image():
    def loss(k, x):
        y = jax.lax.conv_general_dilated(
            x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return (y * y).sum()

    graph = _graph(
        jax.grad(loss, argnums=(0, 1)),
        ((3, 3, 32, 32), ()),
        ((8, 64, 64, 32), (None, "data", None, None)),
    )
    places = [n.inputs[0].shape for n in graph.nodes if n.op == "stablehlo.convolution"]
    assert all(16 in shape for shape in places)
    assert ("all_reduce", (3, 3, 32, 32), 1) in _exchanges(graph)
