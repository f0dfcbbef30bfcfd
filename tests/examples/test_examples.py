"""The examples end as their texts say."""

from examples import conv_net, gpt2_block


def test_the_convolutional_net_passes():
    result = conv_net.main()
    assert result.passed
    assert "dropout" in str(result)


def test_the_bug_of_the_block_is_named_and_explained():
    result = gpt2_block.main(gpt2_block.BlockPort)
    assert not result.passed
    assert "FAIL at mlp" in str(result)
    assert "GELU by erf in place of tanh" in str(result)


def test_the_mended_block_passes():
    assert gpt2_block.main(gpt2_block.MendedPort).passed
