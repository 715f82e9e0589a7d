"""What scripts/test_torch_versions reads in a run's results: which part of the smoke part a test is of."""


def pytest_collection_modifyitems(items):
    for item in items:
        if mark := item.get_closest_marker("smoke"):
            item.user_properties.append(("smoke", *mark.args))
